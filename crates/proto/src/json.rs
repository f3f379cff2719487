//! JSON text (RFC 8259).

use crate::escape;

/// A JSON value that is being written. Commas stand where they belong.
#[derive(Default)]
pub struct JsonWriter {
    /// The text so far.
    pub out: Vec<u8>,
}

impl JsonWriter {
    /// Begins a value: a comma if it is not the first one.
    fn begin(&mut self) {
        if !matches!(self.out.last(), None | Some(b'{' | b'[' | b':')) {
            self.out.push(b',');
        }
    }

    /// An object with what `fields` writes.
    pub fn object(&mut self, fields: impl FnOnce(&mut JsonWriter)) {
        self.begin();
        self.out.push(b'{');
        fields(self);
        self.out.push(b'}');
    }

    /// A list with what `value` writes for each of `values`.
    pub fn list<T>(&mut self, values: &[T], mut value: impl FnMut(&T, &mut JsonWriter)) {
        self.begin();
        self.out.push(b'[');
        values.iter().for_each(|one| value(one, self));
        self.out.push(b']');
    }

    /// A list of numbers.
    pub fn numbers(&mut self, numbers: impl IntoIterator<Item = u64>) {
        self.begin();
        self.out.push(b'[');
        for number in numbers {
            self.plain(number);
        }
        self.out.push(b']');
    }

    /// A number.
    pub fn plain(&mut self, number: u64) {
        self.begin();
        self.out
            .extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
    }

    /// `null`.
    pub fn null(&mut self) {
        self.begin();
        self.out.extend_from_slice(b"null");
    }

    /// A string. Bytes that are not UTF-8 become U+FFFD.
    pub fn string(&mut self, text: &[u8]) {
        self.begin();
        self.out.push(b'"');
        escape::json(&mut self.out, text);
        self.out.push(b'"');
    }

    /// The name of a field; its value is to follow.
    pub fn key(&mut self, name: &str) -> &mut JsonWriter {
        self.string(name.as_bytes());
        self.out.push(b':');
        self
    }

    /// A field.
    pub fn number(&mut self, name: &str, number: u64) {
        self.key(name).plain(number);
    }

    /// A field.
    pub fn signed(&mut self, name: &str, number: i64) {
        let mut digits = itoa::Buffer::new();
        self.key(name).begin();
        self.out.extend_from_slice(digits.format(number).as_bytes());
    }

    /// A field, `null` without a number.
    pub fn optional_number(&mut self, name: &str, number: Option<u64>) {
        match number {
            Some(number) => self.number(name, number),
            None => self.key(name).null(),
        }
    }

    /// A field with a string.
    pub fn bytes(&mut self, name: &str, text: &[u8]) {
        self.key(name).string(text);
    }

    /// A field with a string.
    pub fn text(&mut self, name: &str, text: &str) {
        self.bytes(name, text.as_bytes());
    }

    /// A field with a string, `null` without one.
    pub fn optional_text(&mut self, name: &str, text: Option<&str>) {
        match text {
            Some(text) => self.text(name, text),
            None => self.key(name).null(),
        }
    }

    /// A field that is `true` or `false`.
    pub fn truth(&mut self, name: &str, truth: bool) {
        let text: &[u8] = if truth { b"true" } else { b"false" };
        self.key(name).begin();
        self.out.extend_from_slice(text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_commas_where_they_belong() {
        let mut json = JsonWriter::default();
        json.object(|json| {
            json.number("a", 1);
            json.signed("b", -2);
            json.text("c\"", "\u{e4}\n");
            json.truth("d", true);
            json.optional_number("e", None);
            json.optional_text("f", Some(","));
            json.key("g")
                .list(&[1, 2], |number, json| json.plain(*number));
            json.key("h").list::<u8>(&[], |_, _| {});
            json.key("i").numbers([3, 4]);
            json.key("j").object(|json| json.key("k").null());
        });
        let expected = "{\"a\":1,\"b\":-2,\"c\\\"\":\"\u{e4}\\n\",\"d\":true,\"e\":null,\"f\":\",\",\"g\":[1,2],\
             \"h\":[],\"i\":[3,4],\"j\":{\"k\":null}}";
        assert_eq!(String::from_utf8_lossy(&json.out), expected);
    }
}
