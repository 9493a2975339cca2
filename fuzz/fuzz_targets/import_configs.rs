//! Runs `pgweir_fuzz::import_configs` under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| pgweir_fuzz::import_configs(data));
