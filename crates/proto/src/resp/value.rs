//! What a reply says.

/// A reply, or a part of one.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// There is nothing: a key that is not there, a transaction that was not made.
    Nil,
    /// A short text such as `OK`, without line ends.
    Status(Vec<u8>),
    /// The command failed. The first word is a code in capitals, mostly.
    Error(Vec<u8>),
    /// A whole number.
    Integer(i64),
    /// Any bytes.
    Bulk(Vec<u8>),
    /// Values in their order.
    Array(Vec<Value>),
    /// RESP3: a number with a fraction, or one that is none or infinite.
    Double(f64),
    /// RESP3: true or false.
    Boolean(bool),
    /// RESP3: decimal digits, perhaps behind a sign; too many for [`Value::Integer`].
    BigNumber(Vec<u8>),
    /// RESP3: a text, of which is said what it is.
    Verbatim {
        /// Three bytes: `txt` or `mkd`.
        format: [u8; 3],
        /// The text.
        text: Vec<u8>,
    },
    /// RESP3: keys and values in their order; keys may stand twice.
    Map(Vec<(Value, Value)>),
    /// RESP3: values in no order.
    Set(Vec<Value>),
    /// RESP3: something nobody asked for, which answers no command.
    Push(Vec<Value>),
}

impl Value {
    /// The bytes of a string of any kind, an error's text included.
    pub fn bytes(&self) -> Option<&[u8]> {
        match self {
            Value::Status(bytes)
            | Value::Error(bytes)
            | Value::Bulk(bytes)
            | Value::BigNumber(bytes)
            | Value::Verbatim { text: bytes, .. } => Some(bytes),
            _ => None,
        }
    }

    /// The same, without a copy.
    pub fn into_bytes(self) -> Option<Vec<u8>> {
        match self {
            Value::Status(bytes)
            | Value::Error(bytes)
            | Value::Bulk(bytes)
            | Value::BigNumber(bytes)
            | Value::Verbatim { text: bytes, .. } => Some(bytes),
            _ => None,
        }
    }

    /// Whether the command failed.
    pub fn is_error(&self) -> bool {
        matches!(self, Value::Error(_))
    }

    /// Whether it says `OK`.
    pub fn is_ok(&self) -> bool {
        matches!(self, Value::Status(text) if text == b"OK")
    }
}
