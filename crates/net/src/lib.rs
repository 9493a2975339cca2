//! Event loop, sockets and TLS: drives the machine of pgweir-core with the real world
