//! PAM: asks the operating system's modules whether a password is right. The library is loaded at the first
//! login that needs it, so that a system without PAM can use everything else.
//!
//! Modules may take as long as they like, and may start processes, so the calls belong on a thread for which
//! no other thread waits.
#![allow(unsafe_code, reason = "libpam is a C library, and it is loaded by name")]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::net::IpAddr;
use std::ptr;
use std::sync::OnceLock;

use nix::libc;

/// The name under which PAM looks for rules in `/etc/pam.d`. It is PgBouncer's, so that its files work here,
/// too.
const SERVICE: &CStr = c"pgbouncer";

const PAM_SUCCESS: c_int = 0;
const PAM_BUF_ERR: c_int = 5;
const PAM_CONV_ERR: c_int = 19;
const PAM_RHOST: c_int = 4;
const PAM_PROMPT_ECHO_OFF: c_int = 1;
const PAM_SILENT: c_int = 0x8000;
const PAM_DISALLOW_NULL_AUTHTOK: c_int = 1;

/// The maximum number of questions in one call of a module (`PAM_MAX_NUM_MSG`).
const MESSAGES_MAX: c_int = 32;

/// `pam_handle_t`, whose fields only the library uses.
#[repr(C)]
struct Handle {
    _private: [u8; 0],
}

#[repr(C)]
struct Message {
    style: c_int,
    text: *const c_char,
}

#[repr(C)]
struct Response {
    text: *mut c_char,
    code: c_int,
}

type Converse = unsafe extern "C" fn(c_int, *mut *const Message, *mut *mut Response, *mut c_void) -> c_int;

#[repr(C)]
struct Conversation {
    converse: Converse,
    password: *mut c_void,
}

/// The functions of the library that are used here (`pam(3)`).
struct Library {
    start: unsafe extern "C" fn(*const c_char, *const c_char, *const Conversation, *mut *mut Handle) -> c_int,
    set_item: unsafe extern "C" fn(*mut Handle, c_int, *const c_void) -> c_int,
    authenticate: unsafe extern "C" fn(*mut Handle, c_int) -> c_int,
    acct_mgmt: unsafe extern "C" fn(*mut Handle, c_int) -> c_int,
    strerror: unsafe extern "C" fn(*mut Handle, c_int) -> *const c_char,
    end: unsafe extern "C" fn(*mut Handle, c_int) -> c_int,
}

/// Asks the modules of the service `pgbouncer` whether the password is the user's, and whether the account
/// may log in.
///
/// # Errors
///
/// The reason why the modules refuse the login, or could not be asked; for the log.
pub fn check_password(user: &str, password: &[u8], address: Option<IpAddr>) -> Result<(), String> {
    let library = library()?;
    let user = CString::new(user).map_err(|_| "a user name with a zero byte".to_owned())?;
    let password = CString::new(password).map_err(|_| "a password with a zero byte".to_owned())?;
    let host = address.and_then(|address| CString::new(address.to_string()).ok());
    let conversation = Conversation { converse: answer, password: password.as_ptr().cast_mut().cast() };
    let mut handle = ptr::null_mut();
    // SAFETY: all pointers are to values that live until `pam_end` below; the library writes `handle` only.
    let started =
        unsafe { (library.start)(SERVICE.as_ptr(), user.as_ptr(), &raw const conversation, &raw mut handle) };
    if started != PAM_SUCCESS || handle.is_null() {
        return Err(format!("pam_start failed with code {started}"));
    }
    // SAFETY: `handle` is the live one that `pam_start` gave; `set_item` copies the text.
    let code = unsafe {
        if let Some(host) = &host {
            (library.set_item)(handle, PAM_RHOST, host.as_ptr().cast());
        }
        match (library.authenticate)(handle, PAM_SILENT | PAM_DISALLOW_NULL_AUTHTOK) {
            PAM_SUCCESS => (library.acct_mgmt)(handle, PAM_SILENT),
            code => code,
        }
    };
    // SAFETY: as above; the text that `pam_strerror` gives is copied before `pam_end`, after which `handle` is not used.
    unsafe {
        let text = (library.strerror)(handle, code);
        let why =
            if text.is_null() { String::new() } else { CStr::from_ptr(text).to_string_lossy().into_owned() };
        (library.end)(handle, code);
        if code == PAM_SUCCESS { Ok(()) } else { Err(why) }
    }
}

/// Answers the modules' questions: a prompt that hides its answer gets the password, every other question an
/// empty answer.
unsafe extern "C" fn answer(
    count: c_int,
    messages: *mut *const Message,
    responses: *mut *mut Response,
    password: *mut c_void,
) -> c_int {
    if !(1..=MESSAGES_MAX).contains(&count) || messages.is_null() || responses.is_null() {
        return PAM_CONV_ERR;
    }
    let count = usize::try_from(count).unwrap_or(0);
    // SAFETY: plain allocation; the library frees it, and the texts in it, with `free`.
    let out = unsafe { libc::calloc(count, size_of::<Response>()) }.cast::<Response>();
    if out.is_null() {
        return PAM_BUF_ERR;
    }
    for at in 0..count {
        // SAFETY: Linux-PAM gives `count` pointers to messages; `out` has room for as many, all zero. `password` is the C string that
        // `check_password` keeps alive.
        unsafe {
            let message = *messages.add(at);
            if !message.is_null() && (*message).style == PAM_PROMPT_ECHO_OFF {
                (*out.add(at)).text = libc::strdup(password.cast_const().cast());
            }
        }
    }
    // SAFETY: not null, and the library's to read from here on.
    unsafe { *responses = out };
    PAM_SUCCESS
}

fn library() -> Result<&'static Library, String> {
    static LIBRARY: OnceLock<Option<Library>> = OnceLock::new();
    let loaded = LIBRARY.get_or_init(load);
    loaded.as_ref().ok_or_else(|| "libpam.so.0 cannot be loaded: install the system's PAM library".to_owned())
}

fn load() -> Option<Library> {
    // SAFETY: the system's library by its well-known name; it is never unloaded.
    let library = unsafe { libc::dlopen(c"libpam.so.0".as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
    if library.is_null() {
        return None;
    }
    /// # Safety
    /// `F` must be the type of the function of that name.
    unsafe fn function<F: Copy>(library: *mut c_void, name: &CStr) -> Option<F> {
        const { assert!(size_of::<F>() == size_of::<*mut c_void>(), "a pointer to a function") };
        // SAFETY: `library` is open; a symbol that is found is read as the pointer that it is.
        unsafe {
            let found = libc::dlsym(library, name.as_ptr());
            (!found.is_null()).then(|| std::mem::transmute_copy(&found))
        }
    }
    // SAFETY: the types above are those of `security/pam_appl.h`.
    unsafe {
        Some(Library {
            start: function(library, c"pam_start")?,
            set_item: function(library, c"pam_set_item")?,
            authenticate: function(library, c"pam_authenticate")?,
            acct_mgmt: function(library, c"pam_acct_mgmt")?,
            strerror: function(library, c"pam_strerror")?,
            end: function(library, c"pam_end")?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The part of a conversation that a module sees.
    fn converse(styles: &[c_int]) -> (c_int, Vec<Option<String>>) {
        let messages: Vec<Message> =
            styles.iter().map(|&style| Message { style, text: c"Password: ".as_ptr() }).collect();
        let mut pointers: Vec<*const Message> = messages.iter().map(ptr::from_ref).collect();
        let mut responses = ptr::null_mut();
        let count = c_int::try_from(styles.len()).unwrap();
        let password = c"secret".as_ptr().cast_mut().cast();
        // SAFETY: all of it lives on; the responses are freed as a module would.
        unsafe {
            let code = answer(count, pointers.as_mut_ptr(), &raw mut responses, password);
            let mut texts = Vec::new();
            if code == PAM_SUCCESS {
                for at in 0..styles.len() {
                    let text = (*responses.add(at)).text;
                    texts.push((!text.is_null()).then(|| CStr::from_ptr(text).to_str().unwrap().to_owned()));
                    libc::free(text.cast());
                }
                libc::free(responses.cast());
            }
            (code, texts)
        }
    }

    #[test]
    fn the_password_answers_hidden_prompts_only() {
        let told = converse(&[3, PAM_PROMPT_ECHO_OFF, 2]);
        assert_eq!(told, (PAM_SUCCESS, vec![None, Some("secret".to_owned()), None]));
        assert_eq!(converse(&[]).0, PAM_CONV_ERR);
        assert_eq!(converse(&[1; 33]).0, PAM_CONV_ERR);
    }

    #[test]
    fn zero_bytes_are_no_part_of_names_and_passwords() {
        assert!(check_password("a\0b", b"x", None).is_err());
        assert!(check_password("a", b"x\0y", None).is_err());
    }
}
