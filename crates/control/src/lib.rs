//! The control plane: what may block (files, DNS), off the data plane's threads
