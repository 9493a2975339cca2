//! SCRAM, md5, user list: authentication as state machines over bytes
