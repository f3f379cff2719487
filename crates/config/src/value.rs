//! Values of directives: strings, integers and ordered arrays with optional keys.
//!
//! Two values are equal if their content is. Places in the text do not count.

use std::collections::HashMap;

use crate::source::Span;

/// A value in which all variables and expressions are resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// Text with escapes resolved.
    String(String),
    /// A whole number.
    Integer(i64),
    /// A list or a map.
    Array(Array),
}

impl Value {
    /// The text of a string value.
    #[must_use]
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Value::String(text) => Some(text),
            Value::Integer(_) | Value::Array(_) => None,
        }
    }

    /// A number: an integer or, as in lighttpd, a string of digits.
    #[must_use]
    pub fn as_integer(&self) -> Option<i64> {
        match self {
            Value::Integer(number) => Some(*number),
            Value::String(text) => integer_in(text),
            Value::Array(_) => None,
        }
    }

    /// A switch: "enable" or "true", "disable" or "false" in any letter case, or a number (0 is off).
    #[must_use]
    pub fn as_bool(&self) -> Option<bool> {
        match self {
            Value::Integer(number) => Some(*number != 0),
            Value::String(text) => bool_in(text),
            Value::Array(_) => None,
        }
    }

    /// The elements of an array value.
    #[must_use]
    pub fn as_array(&self) -> Option<&Array> {
        match self {
            Value::Array(array) => Some(array),
            Value::String(_) | Value::Integer(_) => None,
        }
    }

    /// The strings of a list. A single string counts as a list of one. `None` if an element is no string.
    #[must_use]
    pub fn as_strings(&self) -> Option<Vec<&str>> {
        match self {
            Value::String(text) => Some(vec![text]),
            Value::Array(array) => array.iter().map(|element| element.value.as_str()).collect(),
            Value::Integer(_) => None,
        }
    }

    /// Whether the value switches something on: it is neither off, nor 0, nor empty.
    #[must_use]
    pub fn is_enabling(&self) -> bool {
        match self {
            Value::String(text) => !text.is_empty() && bool_in(text) != Some(false),
            Value::Integer(number) => *number != 0,
            Value::Array(array) => !array.is_empty(),
        }
    }

    /// The type of the value for a message: "a string", "an integer", "an array".
    #[must_use]
    pub fn type_name(&self) -> &'static str {
        match self {
            Value::String(_) => "a string",
            Value::Integer(_) => "an integer",
            Value::Array(_) => "an array",
        }
    }

    /// Size and depth, for the limits on values that expressions make.
    pub(crate) fn extent(&self) -> Extent {
        match self {
            Value::String(text) => Extent {
                bytes: SLOT_BYTES + text.len(),
                depth: 0,
            },
            Value::Integer(_) => Extent {
                bytes: SLOT_BYTES,
                depth: 0,
            },
            Value::Array(array) => array.iter().fold(
                Extent {
                    bytes: SLOT_BYTES,
                    depth: 1,
                },
                |sum, element| {
                    let inner = element.value.extent();
                    let bytes =
                        sum.bytes + SLOT_BYTES + element.key().map_or(0, str::len) + inner.bytes;
                    Extent {
                        bytes,
                        depth: sum.depth.max(inner.depth + 1),
                    }
                },
            ),
        }
    }
}

/// How large a value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    /// The bytes of memory that it takes, roughly.
    pub(crate) bytes: usize,
    /// How deep arrays are nested in it.
    pub(crate) depth: usize,
}

/// The key of an array element, and where it is written.
#[derive(Clone, Debug)]
pub struct Key {
    /// The text of the key.
    pub text: String,
    /// Where the key is written.
    pub span: Span,
}

/// One element of an array.
#[derive(Clone, Debug)]
pub struct Element {
    /// The key of `"key" => value`. `None` in a plain list.
    pub key: Option<Key>,
    /// The value.
    pub value: Value,
    /// Where the value is written.
    pub span: Span,
}

impl Element {
    /// The text of the key, if there is one.
    #[must_use]
    pub fn key(&self) -> Option<&str> {
        self.key.as_ref().map(|key| key.text.as_str())
    }
}

impl PartialEq for Element {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key() && self.value == other.value
    }
}

impl Eq for Element {}

/// An ordered list of elements, each with an optional key. Keys are unique.
#[derive(Clone, Debug, Default)]
pub struct Array {
    elements: Vec<Element>,
    /// The positions of keys. Only arrays with [`INDEX_FROM`] or more elements have this, so that small
    /// arrays stay small.
    index: Option<HashMap<String, usize>>,
}

impl Array {
    /// Number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.elements.len()
    }

    /// Whether there are no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.elements.is_empty()
    }

    /// The elements in order.
    pub fn iter(&self) -> std::slice::Iter<'_, Element> {
        self.elements.iter()
    }

    /// The element at a position, from 0.
    #[must_use]
    pub fn at(&self, position: usize) -> Option<&Element> {
        self.elements.get(position)
    }

    /// The element with this key.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Element> {
        self.position(key).and_then(|at| self.elements.get(at))
    }

    /// Adds an element.
    ///
    /// # Errors
    /// The element itself, if the array has its key already.
    pub fn push(&mut self, element: Element) -> Result<(), Box<Element>> {
        if let Some(key) = element.key() {
            if self.position(key).is_some() {
                return Err(Box::new(element));
            }
            let (key, at) = (key.to_owned(), self.elements.len());
            if let Some(index) = &mut self.index {
                index.insert(key, at);
            }
        }
        self.elements.push(element);
        if self.index.is_none() && self.elements.len() >= INDEX_FROM {
            self.build_index();
        }
        Ok(())
    }

    fn position(&self, key: &str) -> Option<usize> {
        match &self.index {
            Some(index) => index.get(key).copied(),
            None => self
                .elements
                .iter()
                .position(|element| element.key() == Some(key)),
        }
    }

    fn build_index(&mut self) {
        let keyed = self.elements.iter().enumerate();
        self.index = Some(
            keyed
                .filter_map(|(at, element)| Some((element.key()?.to_owned(), at)))
                .collect(),
        );
    }
}

impl<'a> IntoIterator for &'a Array {
    type Item = &'a Element;
    type IntoIter = std::slice::Iter<'a, Element>;

    fn into_iter(self) -> Self::IntoIter {
        self.elements.iter()
    }
}

impl IntoIterator for Array {
    type Item = Element;
    type IntoIter = std::vec::IntoIter<Element>;

    fn into_iter(self) -> Self::IntoIter {
        self.elements.into_iter()
    }
}

impl PartialEq for Array {
    fn eq(&self, other: &Self) -> bool {
        self.elements == other.elements
    }
}

impl Eq for Array {}

fn integer_in(text: &str) -> Option<i64> {
    let digits = text.strip_prefix('-').unwrap_or(text);
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    text.parse().ok()
}

fn bool_in(text: &str) -> Option<bool> {
    let is = |word: &str| text.eq_ignore_ascii_case(word);
    if is("enable") || is("enabled") || is("true") || is("1") {
        Some(true)
    } else if is("disable") || is("disabled") || is("false") || is("0") {
        Some(false)
    } else {
        None
    }
}

/// With this many elements an array has a table of its keys. For fewer, a linear search is faster. A file
/// with ten thousand entries in one map must still load in linear time.
const INDEX_FROM: usize = 16;

/// The bytes that a value takes besides its text, roughly.
const SLOT_BYTES: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::FileId;

    fn element(key: Option<&str>, value: i64) -> Element {
        let span = Span {
            file: FileId(0),
            start: 0,
            end: 0,
        };
        let key = key.map(|text| Key {
            text: text.to_owned(),
            span,
        });
        Element {
            key,
            value: Value::Integer(value),
            span,
        }
    }

    #[test]
    fn small_and_large_arrays_find_and_refuse_keys_alike() {
        for size in [1, INDEX_FROM - 1, INDEX_FROM, 10 * INDEX_FROM] {
            let mut array = Array::default();
            for number in 0..size {
                array
                    .push(element(Some(&format!("k{number}")), number as i64))
                    .expect("a new key");
                array.push(element(None, 0)).expect("no key");
            }
            for number in 0..size {
                let key = format!("k{number}");
                assert_eq!(
                    array.get(&key).map(|found| &found.value),
                    Some(&Value::Integer(number as i64))
                );
                assert!(array.push(element(Some(&key), 0)).is_err());
            }
            assert_eq!(array.len(), 2 * size);
            assert!(array.get("k").is_none());
        }
    }

    #[test]
    fn an_empty_or_off_value_enables_nothing() {
        for (value, enabling) in [
            (Value::String("disable".into()), false),
            (Value::String(String::new()), false),
            (Value::String("0".into()), false),
            (Value::String("anything".into()), true),
            (Value::Integer(0), false),
            (Value::Integer(2), true),
            (Value::Array(Array::default()), false),
        ] {
            assert_eq!(value.is_enabling(), enabling, "{value:?}");
        }
    }

    #[test]
    fn integers_in_strings_are_digits_only() {
        for (text, number) in [
            ("80", Some(80)),
            ("-1", Some(-1)),
            ("+1", None),
            ("", None),
            ("-", None),
            ("1k", None),
            (" 1", None),
        ] {
            assert_eq!(Value::String(text.into()).as_integer(), number, "{text}");
        }
    }
}
