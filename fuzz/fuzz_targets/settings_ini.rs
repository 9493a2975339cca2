//! Runs `pgweir_fuzz::settings_ini` under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| pgweir_fuzz::settings_ini(data));
