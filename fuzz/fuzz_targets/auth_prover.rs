//! Runs `pgweir_fuzz::auth_prover` under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| pgweir_fuzz::auth_prover(data));
