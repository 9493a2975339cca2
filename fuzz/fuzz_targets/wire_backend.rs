//! Runs `pgweir_fuzz::wire_backend` under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| pgweir_fuzz::wire_backend(data));
