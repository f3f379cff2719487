//! Parses the lines of RESP, each by itself.

use super::{RespError, Value};

/// The type of a value, which its first byte tells.
#[derive(Clone, Copy, Debug)]
pub(super) enum Type {
    Status,
    Error,
    Integer,
    Double,
    Boolean,
    BigNumber,
    Nil,
    String(StringType),
    Aggregate(AggregateType),
}

/// A type of string with its length in front.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StringType {
    Bulk,
    Error,
    Verbatim,
}

/// A type of aggregate with its number of values in front.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AggregateType {
    Array,
    Map,
    Set,
    Push,
    Attributes,
}

impl Type {
    pub(crate) fn line_bytes_max(self) -> usize {
        match self {
            Type::Status | Type::Error | Type::BigNumber => TEXT_BYTES_MAX,
            _ => NUMBER_BYTES_MAX,
        }
    }
}

pub(super) fn type_of(byte: u8) -> Result<Type, RespError> {
    Ok(match byte {
        b'+' => Type::Status,
        b'-' => Type::Error,
        b':' => Type::Integer,
        b'$' => Type::String(StringType::Bulk),
        b'*' => Type::Aggregate(AggregateType::Array),
        b'_' => Type::Nil,
        b'#' => Type::Boolean,
        b',' => Type::Double,
        b'(' => Type::BigNumber,
        b'!' => Type::String(StringType::Error),
        b'=' => Type::String(StringType::Verbatim),
        b'%' => Type::Aggregate(AggregateType::Map),
        b'~' => Type::Aggregate(AggregateType::Set),
        b'>' => Type::Aggregate(AggregateType::Push),
        b'|' => Type::Aggregate(AggregateType::Attributes),
        _ => return Err(RespError::UnknownType),
    })
}

/// Whether it is decimal digits with an optional sign.
pub(super) fn is_decimal(text: &[u8]) -> bool {
    let digits = match text {
        [b'+' | b'-', digits @ ..] => digits,
        digits => digits,
    };
    !digits.is_empty() && digits.iter().all(u8::is_ascii_digit)
}

pub(super) fn number(text: &[u8]) -> Result<i64, RespError> {
    let text = std::str::from_utf8(text).map_err(|_| RespError::Number)?;
    // The standard library accepts the same numbers: digits with an optional sign.
    text.parse().map_err(|_| RespError::Number)
}

pub(super) fn length(text: &[u8]) -> Result<usize, RespError> {
    if text == b"?" {
        return Err(RespError::Streamed);
    }
    if text.is_empty() || !text.iter().all(u8::is_ascii_digit) {
        return Err(RespError::Length);
    }
    let text = std::str::from_utf8(text).map_err(|_| RespError::Length)?;
    // Digits that do not fit into usize exceed any limit.
    text.parse().map_err(|_| RespError::TooLarge)
}

pub(super) fn double(text: &[u8]) -> Result<f64, RespError> {
    match text {
        b"inf" => return Ok(f64::INFINITY),
        b"-inf" => return Ok(f64::NEG_INFINITY),
        b"nan" | b"-nan" => return Ok(f64::NAN),
        _ => {}
    }
    let is_numeric = |byte: &u8| byte.is_ascii_digit() || b"+-.eE".contains(byte);
    if !text.iter().all(is_numeric) {
        return Err(RespError::Number);
    }
    let text = std::str::from_utf8(text).map_err(|_| RespError::Number)?;
    text.parse().map_err(|_| RespError::Number)
}

pub(super) fn boolean(text: &[u8]) -> Result<bool, RespError> {
    match text {
        b"t" => Ok(true),
        b"f" => Ok(false),
        _ => Err(RespError::Number),
    }
}

/// Splits a verbatim string: three bytes of format, a colon, the text.
pub(super) fn verbatim(mut bytes: Vec<u8>) -> Result<Value, RespError> {
    let Some(&[first, second, third, b':']) = bytes.first_chunk() else {
        return Err(RespError::Verbatim);
    };
    bytes.drain(..4);
    Ok(Value::Verbatim {
        format: [first, second, third],
        text: bytes,
    })
}

/// The longest status, error or big number, in bytes.
const TEXT_BYTES_MAX: usize = 64 * 1024;

/// The longest of all other lines, in bytes. A double has at most 24.
const NUMBER_BYTES_MAX: usize = 64;
