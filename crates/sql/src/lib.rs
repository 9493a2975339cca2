//! SQL lexer and one-sided statement traits
