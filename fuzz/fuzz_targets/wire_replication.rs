//! Runs `pgweir_fuzz::wire_replication` under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| pgweir_fuzz::wire_replication(data));
