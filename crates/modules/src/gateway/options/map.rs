//! Reads one backend's map of options, key by key. A value of the wrong type is refused with its place.

use petrel_engine::config::{Array, Diagnostic, Element, Span, Value};

/// The options of one backend, with what error messages need.
pub(in crate::gateway) struct OptionMap<'c> {
    /// The directive that contains the map.
    pub(crate) directive: &'static str,
    /// The options.
    pub(crate) array: &'c Array,
    /// Where the map is in the text.
    pub(crate) span: Span,
}

impl<'c> OptionMap<'c> {
    /// A text; an empty one counts as missing.
    pub(crate) fn text(&self, key: &str) -> Result<Option<&'c str>, Diagnostic> {
        let Some(element) = self.array.get(key) else {
            return Ok(None);
        };
        match element.value.as_str() {
            Some(text) => Ok(Some(text).filter(|text| !text.is_empty())),
            None => Err(self.wrong(element, key, "a string")),
        }
    }

    /// A whole number from 0 to `max`; a string of digits is accepted as well.
    pub(crate) fn number(&self, key: &str, max: u32) -> Result<Option<u32>, Diagnostic> {
        let Some(element) = self.array.get(key) else {
            return Ok(None);
        };
        let number = element.value.as_integer();
        let number = number.and_then(|number| u32::try_from(number).ok());
        match number.filter(|number| *number <= max) {
            Some(number) => Ok(Some(number)),
            None => Err(self.wrong(element, key, &format!("a number from 0 to {max}"))),
        }
    }

    /// A number from 0 to 65535, which is lighttpd's type for nearly all numbers here.
    pub(crate) fn short(&self, key: &str) -> Result<Option<u32>, Diagnostic> {
        self.number(key, u16::MAX.into())
    }

    /// A switch.
    pub(crate) fn switch(&self, key: &str) -> Result<Option<bool>, Diagnostic> {
        let Some(element) = self.array.get(key) else {
            return Ok(None);
        };
        match element.value.as_bool() {
            Some(switch) => Ok(Some(switch)),
            None => Err(self.wrong(element, key, "\"enable\" or \"disable\"")),
        }
    }

    /// A list of strings.
    pub(crate) fn texts(&self, key: &str) -> Result<Option<Vec<&'c str>>, Diagnostic> {
        let Some(element) = self.array.get(key) else {
            return Ok(None);
        };
        let is_list = |value: &&Value| value.as_array().is_some();
        let texts = Some(&element.value).filter(is_list);
        match texts.and_then(Value::as_strings) {
            Some(texts) => Ok(Some(texts)),
            None => Err(self.wrong(element, key, "a list of strings: ( \"a\", \"b\" )")),
        }
    }

    /// A list of absolute paths of directories.
    pub(crate) fn directories(&self, key: &str) -> Result<Option<Vec<Vec<u8>>>, Diagnostic> {
        let Some(texts) = self.texts(key)? else {
            return Ok(None);
        };
        match texts.iter().find(|text| !text.starts_with('/')) {
            Some(text) => {
                let message = format!("{key} takes absolute paths, not {text:?}");
                Err(self.error(key, message))
            }
            None => Ok(Some(
                texts.iter().map(|text| text.as_bytes().to_vec()).collect(),
            )),
        }
    }

    /// A map from names to strings.
    pub(crate) fn pairs(&self, key: &str) -> Result<Vec<(String, String)>, Diagnostic> {
        let Some(element) = self.array.get(key) else {
            return Ok(Vec::new());
        };
        let pair =
            |inner: &Element| Some((inner.key()?.to_owned(), inner.value.as_str()?.to_owned()));
        let array = element.value.as_array();
        array
            .and_then(|array| array.iter().map(pair).collect())
            .ok_or_else(|| self.wrong(element, key, "a map of strings: ( \"NAME\" => \"value\" )"))
    }

    /// An error that points at the value of `key`, or at the whole map.
    pub(crate) fn error(&self, key: &str, message: String) -> Diagnostic {
        let span = self
            .array
            .get(key)
            .map_or(self.span, |element| element.span);
        Diagnostic::error(format!("{}: {message}", self.directive), span)
    }

    fn wrong(&self, element: &Element, key: &str, expected: &str) -> Diagnostic {
        let found = element.value.type_name();
        let message = match element.value.as_str() {
            Some(text) => format!("{}: {key} takes {expected}, not {text:?}", self.directive),
            None => match element.value.as_integer() {
                Some(number) => format!("{}: {key} takes {expected}, not {number}", self.directive),
                None => format!("{}: {key} takes {expected}, not {found}", self.directive),
            },
        };
        Diagnostic::error(message, element.span)
    }
}
