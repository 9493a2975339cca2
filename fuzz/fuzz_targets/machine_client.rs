//! Runs `pgweir_fuzz::machine_client` under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| pgweir_fuzz::machine_client(data));
