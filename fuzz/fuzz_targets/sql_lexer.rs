//! Runs `pgweir_fuzz::sql_lexer` under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| pgweir_fuzz::sql_lexer(data));
