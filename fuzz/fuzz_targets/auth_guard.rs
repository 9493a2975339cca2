//! Runs `pgweir_fuzz::auth_guard` under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| pgweir_fuzz::auth_guard(data));
