//! Functions of the host that compiled scripts call directly.
//!
//! A function of mlua costs about a thousand instructions besides what it does, and compiled code ends
//! before each call of one. A direct function is called by LuaJIT's FFI, which compiles the call to a dozen
//! instructions. It takes texts and numbers, and answers with one value. Behind each there is an ordinary
//! function, which does what the direct one cannot: take other values, wait, or raise errors.
//!
//! While one runs, compiled code may be in the middle of a Lua stack that LuaJIT has not written down. So it
//! must not use its own Lua state. It is given no handle to it, and runs and [`Machine::lua`] refuse to help.
//!
//! [`Machine::lua`]: crate::Machine::lua

use std::any::Any;
use std::cell::{Cell, UnsafeCell};
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::slice;

use mlua::{Function, LightUserData, Lua, Table};

use crate::lent::Lent;

/// What a script has passed to a direct function.
#[derive(Clone, Copy, Debug)]
pub struct DirectArguments<'a> {
    /// The first argument, if it is a number. LuaJIT has converted it, whatever it was.
    pub number: u32,
    /// The first argument, if it is a text.
    pub text: Option<&'a [u8]>,
    /// The second argument, if there is one. It is a text.
    pub value: Option<&'a [u8]>,
}

/// The answer of a direct function: a number from 0 on is the answer itself, and others say what it is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DirectAnswer(f64);

impl<'a> DirectArguments<'a> {
    /// The first argument, if it is a text in UTF-8. Nearly all are in ASCII, which is found sooner.
    pub fn utf8(&self) -> Option<&'a str> {
        let text = self.text?;
        match text.is_ascii() {
            // SAFETY: ASCII is UTF-8.
            true => Some(unsafe { str::from_utf8_unchecked(text) }),
            false => str::from_utf8(text).ok(),
        }
    }
}

impl DirectAnswer {
    /// `nil`
    pub const NIL: DirectAnswer = DirectAnswer(-1.0);
    /// `true`
    pub const TRUE: DirectAnswer = DirectAnswer(-2.0);
    /// The text in the [`Reply`].
    const TEXT: DirectAnswer = DirectAnswer(-3.0);
    /// The ordinary function behind the direct one is called with the same arguments.
    pub const UNABLE: DirectAnswer = DirectAnswer(-4.0);

    /// A number. One below 0 is left to the ordinary function.
    pub fn number(number: f64) -> DirectAnswer {
        match number >= 0.0 {
            true => DirectAnswer(number),
            false => DirectAnswer::UNABLE,
        }
    }
}

/// The memory for answers that are texts. Lua copies them at once when the function has returned. Numbers
/// cannot be answered like that: LuaJIT's machine code may read one after the next call has changed it.
#[repr(C)]
pub struct Reply {
    length: Cell<i32>,
    text: UnsafeCell<[u8; TEXT_BYTES_MAX]>,
}

/// The longest text that a direct function answers with.
const TEXT_BYTES_MAX: usize = 4096;

impl Reply {
    /// An answer that is a text. A long text is left to the ordinary function.
    pub fn text(&self, text: &[u8]) -> DirectAnswer {
        let (true, Ok(length)) = (text.len() <= TEXT_BYTES_MAX, i32::try_from(text.len())) else {
            return DirectAnswer::UNABLE;
        };
        // SAFETY: nothing refers to the memory: this function makes the only reference to it, and Lua reads
        // it only while no direct function runs. `text` is another place, as it is borrowed.
        let room = unsafe { &mut *self.text.get() };
        room[..text.len()].copy_from_slice(text);
        self.length.set(length);
        DirectAnswer::TEXT
    }
}

/// The direct functions of a Lua state. The state owns it until it is closed, so that it can be called as
/// long as any code of the state runs.
struct DirectFunctions {
    ffi: Table,
    reply: Rc<Reply>,
    contexts: Vec<Rc<dyn Any>>,
}

/// What [`enter`] is called with.
struct CallContext<T: 'static, F> {
    lent: Rc<Lent<T>>,
    reply: Rc<Reply>,
    call: F,
}

/// Prepares a fresh state, which has LuaJIT's `ffi` still.
///
/// # Errors
/// It has not, or memory has run out.
pub(crate) fn open(lua: &Lua) -> mlua::Result<()> {
    lua.set_app_data(DirectFunctions {
        ffi: lua.globals().get("ffi")?,
        reply: Rc::new(Reply {
            length: Cell::new(0),
            text: UnsafeCell::new([0; TEXT_BYTES_MAX]),
        }),
        contexts: Vec::new(),
    });
    Ok(())
}

/// A Lua function that calls `call` with what is lent, and `other` if that is not possible.
///
/// # Errors
/// The state was not prepared, or memory has run out.
pub(crate) fn function<T: 'static, F>(
    lua: &Lua,
    lent: &Rc<Lent<T>>,
    call: F,
    other: &Function,
) -> mlua::Result<Function>
where
    F: Fn(&mut T, DirectArguments<'_>, &Reply) -> DirectAnswer + 'static,
{
    let chunk = lua
        .load(include_str!("direct.lua"))
        .set_name("=petrel/direct.lua");
    let Some(mut functions) = lua.app_data_mut::<DirectFunctions>() else {
        return Err(mlua::Error::runtime("the state has no direct functions"));
    };
    let reply = Rc::clone(&functions.reply);
    let context = Rc::new(CallContext {
        lent: Rc::clone(lent),
        reply: Rc::clone(&reply),
        call,
    });
    let address = |pointer: *const c_void| LightUserData(pointer.cast_mut());
    let arguments = (
        &functions.ffi.clone(),
        address(enter::<T, F> as Enter as *const c_void),
        address(Rc::as_ptr(&context).cast()),
        address(Rc::as_ptr(&reply).cast()),
        other,
    );
    functions.contexts.push(context);
    drop(functions);
    chunk.call(arguments)
}

/// Whether this thread is inside a direct function.
pub(crate) fn is_inside() -> bool {
    INSIDE.get()
}

thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Marks that this thread is inside a direct function, until it is dropped.
struct Inside;

impl Inside {
    fn begin() -> Inside {
        INSIDE.set(true);
        Inside
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        INSIDE.set(false);
    }
}

type Enter = unsafe extern "C" fn(*const c_void, u32, *const u8, usize, *const u8, usize) -> f64;

/// What compiled Lua calls. Nothing unwinds out of it: after a panic the ordinary function is called, if the
/// process goes on.
///
/// # Safety
/// `context` is a [`CallContext`] of the same types, and is alive. Each pointer is null, or points to as many
/// bytes as the number behind it says, which nothing changes meanwhile.
unsafe extern "C" fn enter<T: 'static, F>(
    context: *const c_void,
    number: u32,
    text: *const u8,
    text_bytes: usize,
    value: *const u8,
    value_bytes: usize,
) -> f64
where
    F: Fn(&mut T, DirectArguments<'_>, &Reply) -> DirectAnswer + 'static,
{
    // SAFETY: by the contract of this function. direct.lua passes the address that `function` has given it.
    // `DirectFunctions` keeps the context until mlua drops the state's application data, which it does when
    // it has closed the state. Contexts do not change. The bytes are those of Lua strings that the caller has
    // on its stack; strings never change, and no garbage is collected while this function runs.
    let (context, arguments) = unsafe {
        let context = &*context.cast::<CallContext<T, F>>();
        let arguments = DirectArguments {
            number,
            text: (!text.is_null()).then(|| slice::from_raw_parts(text, text_bytes)),
            value: (!value.is_null()).then(|| slice::from_raw_parts(value, value_bytes)),
        };
        (context, arguments)
    };
    let called = catch_unwind(AssertUnwindSafe(|| {
        let _inside = Inside::begin();
        let call = |lent: &mut T| (context.call)(lent, arguments, &context.reply);
        context.lent.with(call)
    }));
    called.ok().flatten().unwrap_or(DirectAnswer::UNABLE).0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Machine, MachineOptions};

    /// A state with a direct function `say`, and an ordinary one behind it.
    fn with_say(
        lent: &Rc<Lent<Vec<u8>>>,
        say: impl Fn(&mut Vec<u8>, DirectArguments<'_>, &Reply) -> DirectAnswer + 'static,
    ) -> Rc<Machine> {
        let machine = Machine::new(MachineOptions::default()).expect("a state");
        let lua = machine.lua();
        let source = "return function(...) return 'other', ... end";
        let other: Function = lua.load(source).eval().expect("sound");
        let direct = machine.direct(lent, say, &other).expect("memory");
        lua.globals().set("say", direct).expect("memory");
        machine
    }

    fn result(machine: &Machine, source: &str) -> String {
        let source = format!(
            "local results = {{ {source} }} for i = 1, 3 do results[i] = tostring(results[i]) end
            return table.concat(results, ' ')"
        );
        machine.lua().load(source).eval().expect("sound")
    }

    fn echo(_: &mut Vec<u8>, arguments: DirectArguments<'_>, reply: &Reply) -> DirectAnswer {
        match arguments {
            DirectArguments {
                text: Some(b"true"),
                ..
            } => DirectAnswer::TRUE,
            DirectArguments {
                text: Some(b"nil"), ..
            } => DirectAnswer::NIL,
            DirectArguments {
                text: Some(text),
                value: None,
                ..
            } => reply.text(text),
            DirectArguments {
                text: Some(text),
                value: Some(value),
                ..
            } => reply.text(&[text, b"=", value].concat()),
            DirectArguments {
                number,
                value: None,
                ..
            } => DirectAnswer::number(f64::from(number) / 2.0),
            _ => DirectAnswer::UNABLE,
        }
    }

    #[test]
    fn a_script_gets_what_a_direct_function_answers() {
        let lent = Rc::new(Lent::new());
        let machine = with_say(&lent, echo);
        let long = "x".repeat(TEXT_BYTES_MAX + 1);
        for (source, expected) in [
            ("say('abc')", "abc nil nil".to_owned()),
            ("say('')", " nil nil".to_owned()),
            ("say('a', 'b')", "a=b nil nil".to_owned()),
            ("say('true'), say('nil'), say()", "true nil 0".to_owned()),
            ("say(7)", "3.5 nil nil".to_owned()),
            ("say(0)", "0 nil nil".to_owned()),
            ("say(('x'):rep(4096))", format!("{} nil nil", &long[1..])),
            // What it cannot do is left to the other function, with the same arguments.
            ("say(('x'):rep(4097))", format!("other {long} nil")),
            ("say(7, 'a')", "other 7 a".to_owned()),
            ("say('a', 7)", "other a 7".to_owned()),
            ("say(true, 'a')", "other true a".to_owned()),
        ] {
            let answer = lent.lend(&mut Vec::new(), || result(&machine, source));
            assert_eq!(answer, expected, "{source}");
            // The same in compiled code.
            let source = format!(
                "(function() local last for i = 1, 200 do last = {{ {source} }} end return unpack(last, 1, 3) end)()"
            );
            let answer = lent.lend(&mut Vec::new(), || result(&machine, &source));
            assert_eq!(answer, expected, "{source}");
        }
        assert_eq!(
            result(&machine, "say('a')"),
            "other a nil",
            "nothing is lent"
        );
    }

    #[test]
    fn a_text_in_utf8_is_told_from_others() {
        for text in [
            &b""[..],
            b"Content-Type",
            "\u{e4}".as_bytes(),
            b"X-\xff",
            b"\xc3",
        ] {
            let arguments = DirectArguments {
                number: 0,
                text: Some(text),
                value: None,
            };
            assert_eq!(arguments.utf8(), str::from_utf8(text).ok());
        }
    }

    #[test]
    fn what_is_lent_can_be_changed_by_compiled_code() {
        let lent = Rc::new(Lent::new());
        let machine = with_say(&lent, |bytes, arguments, _| {
            bytes.extend_from_slice(arguments.text.unwrap_or_default());
            DirectAnswer::TRUE
        });
        let mut bytes = Vec::new();
        let source = "for i = 1, 1000 do say(i % 2 == 0 and 'b' or 'a') end";
        let run = || machine.lua().load(source).exec();
        lent.lend(&mut bytes, run).expect("sound");
        assert_eq!(bytes, b"ab".repeat(500));
    }

    /// LuaJIT may read memory later than the program says.
    #[test]
    fn a_number_stays_when_another_call_answers() {
        let lent = Rc::new(Lent::new());
        let machine = with_say(&lent, echo);
        let loop_of = |body: &str| {
            let source = format!(
                "(function() local s, t = 0, 0 for i = 1, 300 do local a, b = say(2), say(4) {body} end
                return s, t, nil end)()"
            );
            lent.lend(&mut Vec::new(), || result(&machine, &source))
        };
        assert_eq!(loop_of("s = s + a t = t + b"), "300 600 nil");
        assert_eq!(loop_of("s = s + (b - a)"), "300 0 nil");
        assert_eq!(loop_of("if a == b then s = s + 1 end"), "0 0 nil");
        assert_eq!(loop_of("if a < b then s = s + 1 end"), "300 0 nil");
    }

    #[test]
    fn the_other_function_is_called_after_a_panic() {
        let lent = Rc::new(Lent::new());
        let machine = with_say(&lent, |_, _, _| panic!("a test"));
        let answer = lent.lend(&mut Vec::new(), || result(&machine, "say('a')"));
        assert_eq!(answer, "other a nil");
        assert!(!is_inside());
    }

    #[test]
    fn a_direct_function_cannot_enter_lua() {
        let lent: Rc<Lent<Vec<u8>>> = Rc::new(Lent::new());
        let other = Machine::new(MachineOptions::default()).expect("a state");
        let machine = with_say(&lent, move |_, _, _| {
            let _ = other.lua();
            DirectAnswer::TRUE
        });
        let answer = lent.lend(&mut Vec::new(), || result(&machine, "say('a')"));
        assert_eq!(answer, "other a nil");
    }

    /// A handle may keep a state longer than its machine.
    #[test]
    fn a_direct_function_lives_as_long_as_its_state() {
        let lent = Rc::new(Lent::new());
        let machine = with_say(&lent, echo);
        let lua = machine.lua().clone();
        assert_eq!(Rc::strong_count(&lent), 2);
        drop(machine);
        let text: String = lent
            .lend(&mut Vec::new(), || {
                lua.load("return (say('a', 'b'))").eval()
            })
            .expect("sound");
        assert_eq!(text, "a=b");
        drop(lua);
        assert_eq!(
            Rc::strong_count(&lent),
            1,
            "what the function needs is freed"
        );
    }
}
