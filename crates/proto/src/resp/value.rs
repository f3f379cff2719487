//! The values that replies consist of.

/// A reply, or a part of one.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Nothing: a key that does not exist, a transaction that was not carried out.
    Nil,
    /// A short text such as `OK`, without line ends.
    Status(Vec<u8>),
    /// The command failed. The first word is usually a code in capitals.
    Error(Vec<u8>),
    /// A whole number.
    Integer(i64),
    /// Any bytes.
    Bulk(Vec<u8>),
    /// A list of values.
    Array(Vec<Value>),
    /// RESP3: a floating-point number, which may be infinite or not a number.
    Double(f64),
    /// RESP3: true or false.
    Boolean(bool),
    /// RESP3: an integer beyond [`Value::Integer`], as decimal digits with an optional sign.
    BigNumber(Vec<u8>),
    /// RESP3: a text with its format.
    Verbatim {
        /// Three bytes: `txt` or `mkd`.
        format: [u8; 3],
        /// The text.
        text: Vec<u8>,
    },
    /// RESP3: keys and values in order; a key may occur twice.
    Map(Vec<(Value, Value)>),
    /// RESP3: values without an order.
    Set(Vec<Value>),
    /// RESP3: a message from the server that is no reply to a command.
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

    /// Whether it is an error.
    pub fn is_error(&self) -> bool {
        matches!(self, Value::Error(_))
    }

    /// Whether it is the status `OK`.
    pub fn is_ok(&self) -> bool {
        matches!(self, Value::Status(text) if text == b"OK")
    }
}
