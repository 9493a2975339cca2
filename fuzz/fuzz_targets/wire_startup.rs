//! Runs `pgweir_fuzz::wire_startup` under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| pgweir_fuzz::wire_startup(data));
