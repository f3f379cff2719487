//! libpam, which asks the system's modules whether a password is a user's.
//!
//! The library is opened while the program runs: Petrel needs neither its headers to be built nor the library
//! to start. PAM modules block, and many are not made for threads, so a process that asks has one thread.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::mem::transmute;
use std::{io, ptr};

use crate::process::make_sure_of_one_thread;

/// The functions of libpam. They stay usable until the process ends: the library is never closed.
pub struct Pam {
    start: StartCall,
    set_item: SetItemCall,
    authenticate: StepCall,
    acct_mgmt: StepCall,
    strerror: StrErrorCall,
    end: EndCall,
}

/// One question to PAM.
#[derive(Clone, Copy)]
pub struct PamLogin<'a> {
    /// The name of the file in /etc/pam.d.
    pub service: &'a CStr,
    /// The user's name.
    pub user: &'a CStr,
    /// What the user has typed.
    pub password: &'a CStr,
    /// The client's address, if it has one.
    pub host: Option<&'a CStr>,
}

/// What PAM says about a log-in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PamAnswer {
    /// The password is the user's, and the account may be used.
    Right,
    /// The password is wrong, or the account may not be used; PAM's words for it.
    Refused(String),
    /// PAM cannot tell: a module or a service it asks is not available. PAM's words for it.
    Unavailable(String),
}

impl Pam {
    /// Opens the library.
    ///
    /// # Errors
    /// The dynamic linker's words on why it cannot be opened.
    pub fn open() -> Result<Pam, String> {
        // SAFETY: the name ends with a NUL. Opening runs the initialisers of the system's libpam and of the
        // libraries that it needs, as it would if Petrel were linked with it.
        let library = unsafe { libc::dlopen(LIBRARY.as_ptr(), libc::RTLD_NOW) };
        if library.is_null() {
            // SAFETY: dlerror answers null or a text that ends with a NUL and stays until the next call of
            // this thread; it is copied at once.
            let error = unsafe {
                let error = libc::dlerror();
                (!error.is_null()).then(|| CStr::from_ptr(error).to_string_lossy().into_owned())
            };
            return Err(error.unwrap_or_else(|| "it cannot be opened".to_owned()));
        }
        let find = |name: &CStr| {
            // SAFETY: the handle is that of an open library, which is never closed, and the name ends with a
            // NUL.
            let symbol = unsafe { libc::dlsym(library, name.as_ptr()) };
            match symbol.is_null() {
                true => Err(format!("it has no {}", name.to_string_lossy())),
                false => Ok(symbol),
            }
        };
        // SAFETY: none of the pointers is null. libpam.so.0 is the name of an interface: in every library of
        // that name these functions have the types of Linux-PAM's security/pam_appl.h, which are those below.
        Ok(unsafe {
            Pam {
                start: transmute::<*mut c_void, StartCall>(find(c"pam_start")?),
                set_item: transmute::<*mut c_void, SetItemCall>(find(c"pam_set_item")?),
                authenticate: transmute::<*mut c_void, StepCall>(find(c"pam_authenticate")?),
                acct_mgmt: transmute::<*mut c_void, StepCall>(find(c"pam_acct_mgmt")?),
                strerror: transmute::<*mut c_void, StrErrorCall>(find(c"pam_strerror")?),
                end: transmute::<*mut c_void, EndCall>(find(c"pam_end")?),
            }
        })
    }

    /// Asks PAM whether the password is right and the account may be used. This may take as long as the
    /// modules like.
    ///
    /// # Errors
    /// The process has more than one thread.
    pub fn ask(&self, login: &PamLogin<'_>) -> io::Result<PamAnswer> {
        make_sure_of_one_thread()?;
        let conversation = Conversation {
            talk: answer_prompts,
            password: login.password.as_ptr().cast_mut().cast(),
        };
        let mut handle = ptr::null_mut();
        // SAFETY: all texts end with a NUL and are borrowed until the end of this function. libpam copies the
        // texts and the conversation's two pointers; the password, which it points to, outlives the handle,
        // which is ended below.
        let code = unsafe {
            (self.start)(
                login.service.as_ptr(),
                login.user.as_ptr(),
                &conversation,
                &mut handle,
            )
        };
        if code != SUCCESS || handle.is_null() {
            return Ok(PamAnswer::Unavailable("pam_start failed".to_owned()));
        }
        // SAFETY: `handle` was made by pam_start and is ended once, here; only this thread uses it. Item
        // RHOST takes a text, which libpam copies, and item FAIL_DELAY a function of the type of `no_delay`.
        // pam_strerror answers a text that lives as long as the library.
        let (code, text) = unsafe {
            let mut code = self.set(handle, FAIL_DELAY, no_delay as *const c_void);
            if let (SUCCESS, Some(host)) = (code, login.host) {
                code = self.set(handle, RHOST, host.as_ptr().cast());
            }
            if code == SUCCESS {
                code = (self.authenticate)(handle, SILENT);
            }
            if code == SUCCESS {
                code = (self.acct_mgmt)(handle, SILENT);
            }
            let text = (self.strerror)(handle, code);
            let text = match text.is_null() {
                true => format!("error {code}"),
                false => CStr::from_ptr(text).to_string_lossy().into_owned(),
            };
            (self.end)(handle, code);
            (code, text)
        };
        Ok(match code {
            SUCCESS => PamAnswer::Right,
            code if UNAVAILABLE.contains(&code) => PamAnswer::Unavailable(text),
            _ => PamAnswer::Refused(text),
        })
    }

    /// # Safety
    /// `handle` is one of pam_start that is not ended, and `value` is of the type that `item` has.
    unsafe fn set(&self, handle: *mut Handle, item: c_int, value: *const c_void) -> c_int {
        // SAFETY: the caller's promise is what pam_set_item asks for.
        unsafe { (self.set_item)(handle, item, value) }
    }
}

/// Answers every prompt of a module by the password, and takes messages without showing them to a person.
unsafe extern "C" fn answer_prompts(
    count: c_int,
    prompts: *mut *const Prompt,
    answers: *mut *mut Answer,
    password: *mut c_void,
) -> c_int {
    let count = match usize::try_from(count) {
        Ok(count @ 1..=PROMPTS_MAX) => count,
        _ => return CONVERSATION_ERROR,
    };
    // SAFETY: calloc has no precondition. Zeroes are valid `Answer`s: a null pointer and 0.
    let list = unsafe { libc::calloc(count, size_of::<Answer>()) }.cast::<Answer>();
    if list.is_null() {
        return BUFFER_ERROR;
    }
    for index in 0..count {
        // SAFETY: libpam passes `count` pointers to prompts (Linux-PAM's form of the list), and the list of
        // answers has as many places. `password` is the pointer of `Conversation`, to a text that ends with a
        // NUL and outlives the handle. strdup's copy is freed by the module that asked, as pam_conv(3) says,
        // or just below.
        unsafe {
            let style = (**prompts.add(index)).style;
            if style == ECHO_OFF || style == ECHO_ON {
                let copy = libc::strdup(password.cast::<c_char>());
                if copy.is_null() {
                    for done in 0..index {
                        libc::free((*list.add(done)).text.cast());
                    }
                    libc::free(list.cast());
                    return BUFFER_ERROR;
                }
                (*list.add(index)).text = copy;
            }
        }
    }
    // SAFETY: libpam passes a place for one pointer. The list was made by calloc, and libpam's caller frees
    // it.
    unsafe { *answers = list };
    SUCCESS
}

/// Modules ask for a pause after a wrong password. The client waits for one anyway, and a pause here would
/// keep the checks of others from beginning.
extern "C" fn no_delay(_: c_int, _: std::ffi::c_uint, _: *mut c_void) {}

impl PamLogin<'_> {
    /// The text as C has it; `None`: it has a NUL, where C takes it to end.
    pub fn text(bytes: &[u8]) -> Option<CString> {
        CString::new(bytes).ok()
    }
}

/// What libpam calls `pam_handle_t`, and shows no part of.
#[repr(C)]
struct Handle {
    hidden: [u8; 0],
}

/// `struct pam_message`.
#[repr(C)]
struct Prompt {
    style: c_int,
    text: *const c_char,
}

/// `struct pam_response`.
#[repr(C)]
struct Answer {
    text: *mut c_char,
    code: c_int,
}

/// `struct pam_conv`.
#[repr(C)]
struct Conversation {
    talk: TalkCall,
    password: *mut c_void,
}

type TalkCall =
    unsafe extern "C" fn(c_int, *mut *const Prompt, *mut *mut Answer, *mut c_void) -> c_int;
type StartCall = unsafe extern "C" fn(
    *const c_char,
    *const c_char,
    *const Conversation,
    *mut *mut Handle,
) -> c_int;
type SetItemCall = unsafe extern "C" fn(*mut Handle, c_int, *const c_void) -> c_int;
type StepCall = unsafe extern "C" fn(*mut Handle, c_int) -> c_int;
type StrErrorCall = unsafe extern "C" fn(*mut Handle, c_int) -> *const c_char;
type EndCall = unsafe extern "C" fn(*mut Handle, c_int) -> c_int;

const LIBRARY: &CStr = c"libpam.so.0";

// Numbers of Linux-PAM's security/_pam_types.h.
const SUCCESS: c_int = 0;
const BUFFER_ERROR: c_int = 5;
const CONVERSATION_ERROR: c_int = 19;
const RHOST: c_int = 4;
const FAIL_DELAY: c_int = 10;
const SILENT: c_int = 0x8000;
const ECHO_OFF: c_int = 1;
const ECHO_ON: c_int = 2;
const PROMPTS_MAX: usize = 32;

/// OPEN_ERR, SYMBOL_ERR, SERVICE_ERR, BUF_ERR, AUTHINFO_UNAVAIL, CONV_ERR, TRY_AGAIN, ABORT, MODULE_UNKNOWN,
/// BAD_ITEM. SYSTEM_ERR is not one of them: pam_exec answers it for a program that refuses a password.
const UNAVAILABLE: [c_int; 10] = [1, 2, 3, 5, 9, 19, 24, 26, 28, 29];

#[cfg(test)]
mod tests {
    use super::*;

    fn answers(count: c_int, styles: &[c_int]) -> Result<Vec<Option<String>>, c_int> {
        let prompts: Vec<_> = styles
            .iter()
            .map(|style| Prompt {
                style: *style,
                text: c"Password: ".as_ptr(),
            })
            .collect();
        let mut pointers: Vec<*const Prompt> = prompts.iter().map(ptr::from_ref).collect();
        let mut list = ptr::null_mut();
        let password = c"secret".as_ptr().cast_mut().cast();
        // SAFETY: as libpam calls it: pointers to prompts, as many as `count` says where it is within the
        // limits, and a place for the list.
        let code = unsafe { answer_prompts(count, pointers.as_mut_ptr(), &mut list, password) };
        if code != SUCCESS {
            return Err(code);
        }
        let texts = (0..styles.len()).map(|index| {
            // SAFETY: the list has as many places as there are prompts; each text is null or of strdup, and
            // is freed once.
            unsafe {
                let text = (*list.add(index)).text;
                let copy =
                    (!text.is_null()).then(|| CStr::from_ptr(text).to_str().map(str::to_owned));
                libc::free(text.cast());
                copy.map(|copy| copy.expect("UTF-8"))
            }
        });
        let texts = texts.collect();
        // SAFETY: it was made by calloc and is not used any more.
        unsafe { libc::free(list.cast()) };
        Ok(texts)
    }

    #[test]
    fn prompts_get_the_password_and_messages_nothing() {
        let secret = || Some("secret".to_owned());
        let (error, info) = (3, 4);
        let found = answers(4, &[ECHO_OFF, error, ECHO_ON, info]);
        assert_eq!(found, Ok(vec![secret(), None, secret(), None]));
        for count in [0, -1, 33] {
            assert_eq!(answers(count, &[ECHO_OFF]), Err(CONVERSATION_ERROR));
        }
    }

    #[test]
    fn a_process_with_threads_may_not_ask() {
        // The test runner has several.
        let Ok(pam) = Pam::open() else { return };
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let second = std::thread::spawn(move || ended.recv());
        let login = PamLogin {
            service: c"other",
            user: c"x",
            password: c"x",
            host: None,
        };
        assert!(pam.ask(&login).is_err());
        drop(end);
        assert!(second.join().is_ok());
    }
}
