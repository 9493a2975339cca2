//! Runs `pgweir_fuzz::machine_server` under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| pgweir_fuzz::machine_server(data));
