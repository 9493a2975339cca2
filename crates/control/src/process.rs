//! The operating system's side of the process: its pid file, its user, the background, its limits.

mod background;
mod files_limit;
mod pid_file;
mod user;

pub use self::background::{BackgroundError, go_to_background};
pub use self::files_limit::{FilesLimit, expected_files};
pub use self::pid_file::{PidFile, PidFileError, Standing};
pub use self::user::{UserError, is_root, switch_user};
