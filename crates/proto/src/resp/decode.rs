//! Decodes replies as they arrive.

use super::grammar::{
    AggregateType, StringType, Type, boolean, double, is_decimal, length, number, type_of, verbatim,
};
use super::{RespError, Value};
use crate::crlf_line::{Line, LineError, Scanned};

/// Limits on a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplyLimits {
    /// The longest string, in bytes.
    pub bulk_bytes_max: usize,
    /// The largest reply, in bytes: its strings, plus the size of a [`Value`] in memory for each of its
    /// values.
    pub reply_bytes_max: usize,
    /// The deepest nesting of aggregates.
    pub depth_max: usize,
}

/// 16 MiB for a string, 32 MiB for a reply, 32 levels.
impl Default for ReplyLimits {
    fn default() -> ReplyLimits {
        ReplyLimits {
            bulk_bytes_max: 16 << 20,
            reply_bytes_max: 32 << 20,
            depth_max: 32,
        }
    }
}

/// Decodes the replies of one connection.
///
/// It allocates memory for what has arrived, never for what was announced; what is announced beyond a limit
/// is refused at once. After an error all further calls return that error.
#[derive(Debug)]
pub struct RespDecoder {
    limits: ReplyLimits,
    step: Step,
    line: Line,
    /// Incomplete aggregates, the innermost last.
    open: Vec<Aggregate>,
    /// The size of the current reply so far, as [`ReplyLimits::reply_bytes_max`] counts it.
    spent: usize,
    /// The size of the latest complete reply.
    complete_bytes: usize,
    failed: Option<RespError>,
}

/// The result of feeding some input.
#[derive(Debug, PartialEq)]
pub struct RespProgress {
    /// How many bytes of the input were used: all of them, unless a reply is complete.
    pub consumed: usize,
    /// A complete reply. The rest of the input belongs to the next one.
    pub value: Option<Value>,
}

/// What is expected next.
#[derive(Debug)]
enum Step {
    Type,
    Line(Type),
    String {
        kind: StringType,
        length: usize,
        bytes: Vec<u8>,
    },
    /// The line end after a string, and how many of its bytes were read.
    StringEnd {
        kind: StringType,
        bytes: Vec<u8>,
        seen: usize,
    },
}

#[derive(Debug)]
struct Aggregate {
    kind: AggregateType,
    /// How many values are still to come.
    missing: usize,
    values: Vec<Value>,
}

impl RespDecoder {
    /// A decoder for the next reply.
    pub fn new(limits: ReplyLimits) -> RespDecoder {
        RespDecoder {
            limits,
            step: Step::Type,
            line: Line::default(),
            open: Vec::new(),
            spent: 0,
            complete_bytes: 0,
            failed: None,
        }
    }

    /// The size of the latest complete reply, as [`ReplyLimits::reply_bytes_max`] counts it, including the
    /// outermost value.
    pub fn reply_bytes(&self) -> usize {
        self.complete_bytes + size_of::<Value>()
    }

    /// Reads `input` up to the end of a reply.
    ///
    /// # Errors
    /// The input is no reply, or one beyond the limits.
    pub fn feed(&mut self, input: &[u8]) -> Result<RespProgress, RespError> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        let fed = self.read(input);
        self.failed = fed.as_ref().err().copied();
        fed
    }

    fn read(&mut self, input: &[u8]) -> Result<RespProgress, RespError> {
        let mut rest = input;
        while !rest.is_empty() {
            let value = match std::mem::replace(&mut self.step, Step::Type) {
                Step::Type => self.read_type(&mut rest)?,
                Step::Line(kind) => self.read_line(kind, &mut rest)?,
                Step::String {
                    kind,
                    length,
                    bytes,
                } => self.read_string(kind, length, bytes, &mut rest),
                Step::StringEnd { kind, bytes, seen } => {
                    self.read_string_end(kind, bytes, seen, &mut rest)?
                }
            };
            if let Some(value) = value
                && let Some(reply) = self.add(value)?
            {
                self.complete_bytes = std::mem::take(&mut self.spent);
                return Ok(RespProgress {
                    consumed: input.len() - rest.len(),
                    value: Some(reply),
                });
            }
        }
        Ok(RespProgress {
            consumed: input.len(),
            value: None,
        })
    }

    fn read_type(&mut self, rest: &mut &[u8]) -> Result<Option<Value>, RespError> {
        if let Some((&first, behind)) = rest.split_first() {
            self.step = Step::Line(type_of(first)?);
            *rest = behind;
        }
        Ok(None)
    }

    fn read_line(&mut self, kind: Type, rest: &mut &[u8]) -> Result<Option<Value>, RespError> {
        match self.line.scan(rest, kind.line_bytes_max())? {
            Scanned::More => {
                *rest = &[];
                self.step = Step::Line(kind);
                return Ok(None);
            }
            Scanned::Complete(used) => *rest = rest.get(used..).unwrap_or_default(),
        }
        let value = self.value_of_line(kind)?;
        self.line.clear();
        Ok(value)
    }

    /// The value, if the complete line holds all of it; else prepares for what follows.
    fn value_of_line(&mut self, kind: Type) -> Result<Option<Value>, RespError> {
        Ok(Some(match kind {
            Type::Status => Value::Status(self.text()?),
            Type::Error => Value::Error(self.text()?),
            Type::BigNumber => {
                if !is_decimal(self.line.text()) {
                    return Err(RespError::Number);
                }
                Value::BigNumber(self.text()?)
            }
            Type::Integer => Value::Integer(number(self.line.text())?),
            Type::Double => Value::Double(double(self.line.text())?),
            Type::Boolean => Value::Boolean(boolean(self.line.text())?),
            Type::Nil if self.line.text().is_empty() => Value::Nil,
            Type::Nil => return Err(RespError::Length),
            Type::String(kind) => return self.begin_string(kind),
            Type::Aggregate(kind) => return self.begin_aggregate(kind),
        }))
    }

    fn text(&mut self) -> Result<Vec<u8>, RespError> {
        let text = self.line.take();
        self.spend(text.len())?;
        Ok(text)
    }

    fn begin_string(&mut self, kind: StringType) -> Result<Option<Value>, RespError> {
        let line = self.line.text();
        if kind == StringType::Bulk && line == b"-1" {
            return Ok(Some(Value::Nil));
        }
        let length = length(line)?;
        if length > self.limits.bulk_bytes_max {
            return Err(RespError::BulkTooLong);
        }
        self.spend(length)?;
        self.step = match length {
            0 => Step::StringEnd {
                kind,
                bytes: Vec::new(),
                seen: 0,
            },
            _ => Step::String {
                kind,
                length,
                bytes: Vec::new(),
            },
        };
        Ok(None)
    }

    fn begin_aggregate(&mut self, kind: AggregateType) -> Result<Option<Value>, RespError> {
        let line = self.line.text();
        if kind == AggregateType::Array && line == b"-1" {
            return Ok(Some(Value::Nil));
        }
        let count = length(line)?;
        let values = match kind {
            AggregateType::Map | AggregateType::Attributes => count.checked_mul(2),
            _ => Some(count),
        };
        let missing = values.ok_or(RespError::TooLarge)?;
        if self.open.len() >= self.limits.depth_max {
            return Err(RespError::TooDeep);
        }
        let bytes = missing.checked_mul(size_of::<Value>());
        self.spend(bytes.ok_or(RespError::TooLarge)?)?;
        let aggregate = Aggregate {
            kind,
            missing,
            values: Vec::with_capacity(missing.min(CAPACITY_AT_FIRST)),
        };
        if missing == 0 {
            return Ok(aggregate.complete());
        }
        self.open.push(aggregate);
        Ok(None)
    }

    fn read_string(
        &mut self,
        kind: StringType,
        length: usize,
        mut bytes: Vec<u8>,
        rest: &mut &[u8],
    ) -> Option<Value> {
        let missing = length - bytes.len();
        let (part, behind) = rest.split_at(missing.min(rest.len()));
        bytes.extend_from_slice(part);
        *rest = behind;
        self.step = match part.len() == missing {
            true => Step::StringEnd {
                kind,
                bytes,
                seen: 0,
            },
            false => Step::String {
                kind,
                length,
                bytes,
            },
        };
        None
    }

    fn read_string_end(
        &mut self,
        kind: StringType,
        bytes: Vec<u8>,
        seen: usize,
        rest: &mut &[u8],
    ) -> Result<Option<Value>, RespError> {
        let missing = b"\r\n".get(seen..).unwrap_or_default();
        let (part, behind) = rest.split_at(missing.len().min(rest.len()));
        if !missing.starts_with(part) {
            return Err(RespError::LineEnd);
        }
        *rest = behind;
        if part.len() < missing.len() {
            let seen = seen + part.len();
            self.step = Step::StringEnd { kind, bytes, seen };
            return Ok(None);
        }
        Ok(Some(match kind {
            StringType::Bulk => Value::Bulk(bytes),
            StringType::Error => Value::Error(bytes),
            StringType::Verbatim => verbatim(bytes)?,
        }))
    }

    /// Adds a complete value to the innermost aggregate. Returns the reply if that completes it.
    fn add(&mut self, value: Value) -> Result<Option<Value>, RespError> {
        let mut value = value;
        while let Some(aggregate) = self.open.last_mut() {
            aggregate.values.push(value);
            aggregate.missing -= 1;
            if aggregate.missing > 0 {
                return Ok(None);
            }
            let complete = self.open.pop().and_then(Aggregate::complete);
            match complete {
                Some(complete) => value = complete,
                // Attributes are dropped; the value that they describe follows.
                None => return Ok(None),
            }
        }
        Ok(Some(value))
    }

    fn spend(&mut self, bytes: usize) -> Result<(), RespError> {
        self.spent = self.spent.saturating_add(bytes);
        match self.spent <= self.limits.reply_bytes_max {
            true => Ok(()),
            false => Err(RespError::TooLarge),
        }
    }
}

impl From<LineError> for RespError {
    fn from(error: LineError) -> RespError {
        match error {
            LineError::TooLong => RespError::LineTooLong,
            LineError::End => RespError::LineEnd,
        }
    }
}

impl Aggregate {
    /// The value; `None` for attributes.
    fn complete(self) -> Option<Value> {
        Some(match self.kind {
            AggregateType::Array => Value::Array(self.values),
            AggregateType::Set => Value::Set(self.values),
            AggregateType::Push => Value::Push(self.values),
            AggregateType::Map => Value::Map(pairs(self.values)),
            AggregateType::Attributes => return None,
        })
    }
}

fn pairs(values: Vec<Value>) -> Vec<(Value, Value)> {
    let mut pairs = Vec::with_capacity(values.len() / 2);
    let mut values = values.into_iter();
    while let (Some(key), Some(value)) = (values.next(), values.next()) {
        pairs.push((key, value));
    }
    pairs
}

/// The most values that an aggregate reserves memory for before the first one has arrived.
const CAPACITY_AT_FIRST: usize = 16;
