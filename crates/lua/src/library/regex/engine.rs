//! PCRE2 with a reliable limit: compiled expressions, and matches that are stopped.
//!
//! PCRE2's match limit counts backtracking, but not how far it reads between two counts: within a million
//! counts, `(?:a*[bd]|a)*[cd]` reads a subject of twenty thousand `a` for minutes. So short subjects are
//! matched with a match limit that shrinks with their length. Where that is not enough, the expression is
//! compiled once more with a callout before each of its items (PCRE2_AUTO_CALLOUT); the callout counts steps
//! and bytes, and stops the match. This is slower, but always ends.
//!
//! Because of the callout this file calls PCRE2 directly: no safe interface to PCRE2 supports it. It holds
//! all unsafe code of regular expressions. Knows nothing of Lua.

use std::cell::{Cell, OnceCell};
use std::ffi::{c_int, c_void};
use std::ptr::{self, NonNull};

use pcre2_sys as pcre2;

/// The positions of a match and its groups; `None` for a group that did not take part.
pub(super) type Groups = Vec<Option<(usize, usize)>>;

/// Why there is no result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum MatchFault {
    /// PCRE2 refuses the expression: its message, and the offset.
    Syntax(String, usize),
    /// All steps are used up.
    Steps,
    /// Any other error, as PCRE2's message.
    Other(String),
}

/// The parameters of a search.
#[derive(Clone, Copy, Debug)]
pub(super) struct Search<'a> {
    pub(super) subject: &'a [u8],
    /// The offset at which it begins.
    pub(super) from: usize,
    /// Whether a match at `from` must not be empty, because the last match ended there.
    pub(super) not_empty: bool,
    /// How it is tried first.
    pub(super) first: First,
}

/// How a search is tried first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum First {
    /// With the match limit, if the subject is short. This does not use up steps.
    Quick,
    /// With the callout: every step counts.
    Counted,
}

/// What all matches of a state share: match contexts with the limits, and the stack for compiled code.
pub(super) struct Engine {
    /// Has a match limit, which each match sets.
    quick: NonNull<pcre2::pcre2_match_context_8>,
    /// Has the callout.
    watched: NonNull<pcre2::pcre2_match_context_8>,
    stack: *mut pcre2::pcre2_jit_stack_8,
    /// The counter of the callout. It is boxed, because PCRE2 keeps its address.
    meter: Box<StepMeter>,
}

/// A compiled expression.
pub(super) struct Expression {
    text: Vec<u8>,
    options: u32,
    quick: Code,
    /// The variant with callouts, compiled when the quick one gives up.
    watched: OnceCell<Result<Code, MatchFault>>,
    names: Vec<(Vec<u8>, usize)>,
}

/// The remaining steps, and the last position of the match.
struct StepMeter {
    steps: Cell<u64>,
    place: Cell<usize>,
}

/// Subjects up to this length are tried with the match limit first.
const QUICK_BYTES_MAX: usize = 4096;

/// The product of match limit and length of the subject in bytes, since each count may read the whole
/// subject.
const QUICK_WORK: usize = 1_000_000;

/// How many bytes a match may read per step.
const BYTES_OF_STEP: u64 = 16;

/// The size of the stack for compiled code: initially and at most.
const STACK_BYTES: (usize, usize) = (32 << 10, 1 << 20);

/// Kibibytes that PCRE2's interpreter may use on processors for which PCRE2 has no compiler.
const HEAP_KIBIBYTES: u32 = 32 << 10;

impl Engine {
    /// `None` if memory has run out.
    pub(super) fn new() -> Option<Engine> {
        let meter = Box::new(StepMeter {
            steps: Cell::new(0),
            place: Cell::new(0),
        });
        let quick = context()?;
        let Some(watched) = context() else {
            // SAFETY: it was made above and is not used anywhere.
            unsafe { pcre2::pcre2_match_context_free_8(quick.as_ptr()) };
            return None;
        };
        let data: *const StepMeter = &raw const *meter;
        // SAFETY: the context is alive. The callout gets `data` whenever a match with this context is
        // under way, which is inside `Engine::run` only, and `Engine` owns the meter.
        unsafe { pcre2_set_callout_8(watched.as_ptr(), Some(count_step), data.cast_mut().cast()) };
        // SAFETY: plain numbers and no custom memory functions.
        let stack = unsafe {
            pcre2::pcre2_jit_stack_create_8(STACK_BYTES.0, STACK_BYTES.1, ptr::null_mut())
        };
        if !stack.is_null() {
            for context in [quick, watched] {
                // SAFETY: without a callback, the pointer is the stack to use. It is freed after
                // the contexts, in `drop`, and no two matches of an engine are under way at once.
                unsafe { pcre2::pcre2_jit_stack_assign_8(context.as_ptr(), None, stack.cast()) };
            }
        }
        Some(Engine {
            quick,
            watched,
            stack,
            meter,
        })
    }

    /// The first match of `expression`. `steps` is the remaining allowance, and is reduced.
    pub(super) fn find(
        &self,
        expression: &Expression,
        search: Search<'_>,
        steps: &mut u64,
    ) -> Result<Option<Groups>, MatchFault> {
        if search.from > search.subject.len() {
            return Ok(None);
        }
        if search.first == First::Quick && search.subject.len() <= QUICK_BYTES_MAX {
            let counts = QUICK_WORK / (search.subject.len() + 16);
            // SAFETY: the context is alive.
            unsafe { pcre2::pcre2_set_match_limit_8(self.quick.as_ptr(), counts as u32) };
            let found = self.run(&expression.quick, self.quick, search);
            if found != Err(pcre2::PCRE2_ERROR_MATCHLIMIT) {
                return found.map_err(fault);
            }
        }
        self.meter.steps.set(*steps);
        self.meter.place.set(search.from);
        let found = self.run(expression.watched()?, self.watched, search);
        *steps = self.meter.steps.get();
        found.map_err(fault)
    }

    /// Runs one match. The error is PCRE2's number.
    fn run(
        &self,
        code: &Code,
        context: NonNull<pcre2::pcre2_match_context_8>,
        search: Search<'_>,
    ) -> Result<Option<Groups>, c_int> {
        let options = match search.not_empty {
            true => pcre2::PCRE2_NOTEMPTY_ATSTART,
            false => 0,
        };
        // SAFETY: code, match data and context are alive and not in use: nothing that is called from
        // here comes back to this engine. The subject is alive during the call, and `from` is not
        // behind its end, as `find` has checked.
        let count = unsafe {
            pcre2::pcre2_match_8(
                code.code.as_ptr(),
                search.subject.as_ptr(),
                search.subject.len(),
                search.from,
                options,
                code.data.as_ptr(),
                context.as_ptr(),
            )
        };
        match count {
            pcre2::PCRE2_ERROR_NOMATCH => Ok(None),
            count if count < 0 => Err(count),
            count => Ok(Some(code.groups(count as usize, search.subject.len()))),
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        // SAFETY: made by `new`, freed once, and no match is under way. A null stack is allowed.
        unsafe {
            pcre2::pcre2_match_context_free_8(self.quick.as_ptr());
            pcre2::pcre2_match_context_free_8(self.watched.as_ptr());
            pcre2::pcre2_jit_stack_free_8(self.stack);
        }
    }
}

impl Expression {
    /// Compiles `text` with flags: `i` ignores case, `m` makes `^` and `$` match at lines, `s` makes the dot
    /// match line ends, `x` ignores blanks, `u` uses UTF-8 and its classes.
    pub(super) fn new(text: &[u8], flags: &[u8]) -> Result<Expression, MatchFault> {
        let mut options = pcre2::PCRE2_NEVER_BACKSLASH_C;
        for flag in flags {
            options |= match flag {
                b'i' => pcre2::PCRE2_CASELESS,
                b'm' => pcre2::PCRE2_MULTILINE,
                b's' => pcre2::PCRE2_DOTALL,
                b'x' => pcre2::PCRE2_EXTENDED,
                b'u' => pcre2::PCRE2_UTF | pcre2::PCRE2_UCP | pcre2::PCRE2_MATCH_INVALID_UTF,
                _ => return Err(MatchFault::Other("flags are i, m, s, x and u".to_owned())),
            };
        }
        let quick = Code::new(text, options)?;
        Ok(Expression {
            names: quick.names(),
            text: text.to_vec(),
            options,
            quick,
            watched: OnceCell::new(),
        })
    }

    /// The named groups with their numbers.
    pub(super) fn names(&self) -> &[(Vec<u8>, usize)] {
        &self.names
    }

    /// The number of groups, including the whole match.
    pub(super) fn group_count(&self) -> usize {
        // SAFETY: the match data is alive.
        unsafe { pcre2::pcre2_get_ovector_count_8(self.quick.data.as_ptr()) as usize }
    }

    fn watched(&self) -> Result<&Code, MatchFault> {
        let options = self.options | pcre2::PCRE2_AUTO_CALLOUT;
        let made = self.watched.get_or_init(|| Code::new(&self.text, options));
        made.as_ref().map_err(Clone::clone)
    }
}

/// Compiled code with the memory for its results.
struct Code {
    code: NonNull<pcre2::pcre2_code_8>,
    data: NonNull<pcre2::pcre2_match_data_8>,
}

impl Code {
    fn new(text: &[u8], options: u32) -> Result<Code, MatchFault> {
        let (mut number, mut offset) = (0, 0);
        // SAFETY: text and results are alive during the call; PCRE2 keeps none of them.
        let code = unsafe {
            pcre2::pcre2_compile_8(
                text.as_ptr(),
                text.len(),
                options,
                &raw mut number,
                &raw mut offset,
                ptr::null_mut(),
            )
        };
        let Some(code) = NonNull::new(code) else {
            return Err(MatchFault::Syntax(words(number), offset));
        };
        // SAFETY: the code is alive. If this fails, PCRE2 interprets the code, with the same results.
        unsafe { pcre2::pcre2_jit_compile_8(code.as_ptr(), pcre2::PCRE2_JIT_COMPLETE) };
        // SAFETY: the code is alive.
        let data = unsafe {
            pcre2::pcre2_match_data_create_from_pattern_8(code.as_ptr(), ptr::null_mut())
        };
        let Some(data) = NonNull::new(data) else {
            // SAFETY: it was made above and is not used anywhere.
            unsafe { pcre2::pcre2_code_free_8(code.as_ptr()) };
            return Err(MatchFault::Other("no memory".to_owned()));
        };
        Ok(Code { code, data })
    }

    /// The results of the last match. `set` of its groups have a value.
    fn groups(&self, set: usize, subject_bytes: usize) -> Groups {
        // SAFETY: the match data is alive, and has been filled by a match that succeeded.
        let (pairs, places) = unsafe {
            (
                pcre2::pcre2_get_ovector_count_8(self.data.as_ptr()) as usize,
                pcre2::pcre2_get_ovector_pointer_8(self.data.as_ptr()),
            )
        };
        // SAFETY: PCRE2 documents that this many pairs of offsets are there until the next match.
        let places = unsafe { std::slice::from_raw_parts(places, 2 * pairs) };
        let group = |(index, pair): (usize, &[usize])| match pair {
            // `\K` in a lookahead can put the start after the end.
            [start, end] if index < set && start <= end && *end <= subject_bytes => {
                Some((*start, *end))
            }
            _ => None,
        };
        places.chunks_exact(2).enumerate().map(group).collect()
    }

    fn names(&self) -> Vec<(Vec<u8>, usize)> {
        let (mut count, mut size) = (0u32, 0u32);
        let mut table: *const u8 = ptr::null();
        let wanted: [(u32, *mut c_void); 3] = [
            (pcre2::PCRE2_INFO_NAMECOUNT, (&raw mut count).cast()),
            (pcre2::PCRE2_INFO_NAMEENTRYSIZE, (&raw mut size).cast()),
            (pcre2::PCRE2_INFO_NAMETABLE, (&raw mut table).cast()),
        ];
        for (what, place) in wanted {
            // SAFETY: the code is alive, and each place has the type that PCRE2 documents for it.
            let told = unsafe { pcre2::pcre2_pattern_info_8(self.code.as_ptr(), what, place) };
            if told != 0 {
                return Vec::new();
            }
        }
        if table.is_null() || count == 0 || size < 3 {
            return Vec::new();
        }
        // SAFETY: the table has `count` entries of `size` bytes and lives as long as the code.
        let table = unsafe { std::slice::from_raw_parts(table, (count * size) as usize) };
        let name = |entry: &[u8]| match entry {
            [high, low, name @ ..] => {
                let end = name
                    .iter()
                    .position(|byte| *byte == 0)
                    .unwrap_or(name.len());
                let number = usize::from(*high) << 8 | usize::from(*low);
                Some((name.get(..end)?.to_vec(), number))
            }
            _ => None,
        };
        table.chunks_exact(size as usize).filter_map(name).collect()
    }
}

impl Drop for Code {
    fn drop(&mut self) {
        // SAFETY: made by `new`, freed once, and no match is under way.
        unsafe {
            pcre2::pcre2_match_data_free_8(self.data.as_ptr());
            pcre2::pcre2_code_free_8(self.code.as_ptr());
        }
    }
}

/// The beginning of PCRE2's callout block (pcre2callout(3)); later versions add fields at its end.
#[repr(C)]
struct CalloutBlock {
    version: u32,
    callout_number: u32,
    capture_top: u32,
    capture_last: u32,
    offset_vector: *mut usize,
    mark: *const u8,
    subject: *const u8,
    subject_length: usize,
    start_match: usize,
    current_position: usize,
}

unsafe extern "C" {
    /// Sets the function that a match with this context calls at callouts (pcre2_set_callout(3)).
    fn pcre2_set_callout_8(
        context: *mut pcre2::pcre2_match_context_8,
        callout: Option<unsafe extern "C" fn(*mut CalloutBlock, *mut c_void) -> c_int>,
        data: *mut c_void,
    ) -> c_int;
}

/// The callout, called before each item of an expression. Zero continues the match; a negative number ends it
/// with that error.
///
/// # Safety
/// Only PCRE2 calls it, with its own block and with the pointer that `Engine::new` passed, a [`StepMeter`].
unsafe extern "C" fn count_step(block: *mut CalloutBlock, data: *mut c_void) -> c_int {
    // SAFETY: `Engine` owns the meter and is borrowed while it matches; only this thread uses it.
    let meter = unsafe { &*data.cast::<StepMeter>() };
    // SAFETY: PCRE2 passes a block that lives during the call.
    let place = unsafe { (*block).current_position };
    let read = place.saturating_sub(meter.place.replace(place)) as u64;
    let cost = 1 + read / BYTES_OF_STEP;
    match meter.steps.get().checked_sub(cost) {
        Some(left) => {
            meter.steps.set(left);
            0
        }
        None => {
            meter.steps.set(0);
            pcre2::PCRE2_ERROR_CALLOUT
        }
    }
}

fn context() -> Option<NonNull<pcre2::pcre2_match_context_8>> {
    // SAFETY: a null pointer asks for the usual memory functions.
    let context = NonNull::new(unsafe { pcre2::pcre2_match_context_create_8(ptr::null_mut()) })?;
    // SAFETY: the context is alive.
    unsafe { pcre2::pcre2_set_heap_limit_8(context.as_ptr(), HEAP_KIBIBYTES) };
    Some(context)
}

fn fault(number: c_int) -> MatchFault {
    match number {
        pcre2::PCRE2_ERROR_CALLOUT | pcre2::PCRE2_ERROR_MATCHLIMIT => MatchFault::Steps,
        other => MatchFault::Other(words(other)),
    }
}

/// PCRE2's message for an error.
fn words(number: c_int) -> String {
    let mut buffer = [0u8; 256];
    // SAFETY: PCRE2 writes no more than the length that it is given, and ends with a zero byte.
    let length =
        unsafe { pcre2::pcre2_get_error_message_8(number, buffer.as_mut_ptr(), buffer.len()) };
    let text = usize::try_from(length)
        .ok()
        .and_then(|length| buffer.get(..length));
    text.map_or_else(
        || format!("PCRE2 error {number}"),
        |text| String::from_utf8_lossy(text).into_owned(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(pattern: &str, subject: &[u8], mut steps: u64) -> Result<Option<Groups>, MatchFault> {
        let engine = Engine::new().expect("memory");
        let expression = Expression::new(pattern.as_bytes(), b"").expect("sound");
        let search = Search {
            subject,
            from: 0,
            not_empty: false,
            first: First::Quick,
        };
        engine.find(&expression, search, &mut steps)
    }

    #[test]
    fn short_and_long_subjects_give_the_same_answer() {
        for pad in [0, 100, QUICK_BYTES_MAX + 10] {
            let mut subject = vec![b'-'; pad];
            subject.extend_from_slice(b"key=value");
            let groups = find(r"(\w+)=(\w+)|(never)", &subject, 1_000_000);
            let expected = vec![
                Some((pad, pad + 9)),
                Some((pad, pad + 3)),
                Some((pad + 4, pad + 9)),
                None,
            ];
            assert_eq!(groups, Ok(Some(expected)));
        }
    }

    #[test]
    fn catastrophes_end() {
        for (pattern, bytes) in [
            ("(a+)+$", 40),
            ("(?:a*[bd]|a)*[cd]", 3_000),
            ("(?:a*[bd]|a)*[cd]", 20_000),
            ("(?:a*+[bd]|a)*+[cd]", 200_000),
            ("(?:.*?){5}[?b]", 3_000),
            ("(x+x+)+y|(?:(?:a|a)*)*[bc]", 1_000_000),
            ("a*a*a*a*a*[bc]", 100_000),
        ] {
            let mut subject = vec![b'a'; bytes];
            subject.push(b'~');
            let started = std::time::Instant::now();
            let found = find(pattern, &subject, 1_000_000 + bytes as u64);
            let taken = started.elapsed();
            assert!(found.is_err() || found == Ok(None), "{pattern}: {found:?}");
            assert!(taken.as_secs() < 60, "{pattern} {bytes}: {taken:?}");
        }
    }

    #[test]
    fn long_subjects_cost_a_step_for_many_bytes() {
        let mut subject = vec![b'a'; 1 << 20];
        subject.extend_from_slice(b"=1");
        assert!(matches!(
            find("^([^=]*)=(.*)$", &subject, 200_000),
            Ok(Some(_))
        ));
        assert!(matches!(find("=1$", &subject, 70_000), Ok(Some(_))));
    }

    #[test]
    fn groups_have_names() {
        let expression = Expression::new(br"(?<year>\d+)-(?<month>\d+)", b"").expect("sound");
        let names: Vec<_> = expression.names().to_vec();
        assert_eq!(names, [(b"month".to_vec(), 2), (b"year".to_vec(), 1)]);
    }

    #[test]
    fn faults_of_an_expression_have_a_place() {
        let Err(MatchFault::Syntax(words, offset)) = Expression::new(b"a(b", b"").map(|_| ())
        else {
            panic!("it was accepted");
        };
        assert!(words.contains("parenthesis"), "{words}");
        assert_eq!(offset, 3);
        assert!(Expression::new(b"a", b"q").is_err());
        assert!(Expression::new(br"\C", b"").is_err());
    }
}
