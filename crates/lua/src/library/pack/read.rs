//! Decodes bytes to values.

use super::PackResult;
use super::format::{PackFormat, PackItem};

/// The most results of an unpack: a C function has room for 8000.
const RESULTS_MAX: usize = 7_000;

/// One result.
pub(super) enum Unpacked<'a> {
    Number(f64),
    Text(&'a [u8]),
}

/// Decodes the values in `data` from `start` on. Returns them and where they end.
pub(super) fn unpacked<'a>(
    format: &[u8],
    data: &'a [u8],
    start: usize,
) -> PackResult<(Vec<Unpacked<'a>>, usize)> {
    let mut format = PackFormat::new(format);
    let mut place = start;
    let mut items = Vec::new();
    while let Some((item, padding)) = format.next(place)? {
        if items.len() >= RESULTS_MAX {
            return Err("too many results".to_owned());
        }
        take(data, &mut place, padding)?;
        match item {
            PackItem::Signed(size) => {
                let bytes = take(data, &mut place, size)?;
                items.push(Unpacked::Number(read_integer(bytes, format.little, true)?));
            }
            PackItem::Unsigned(size) => {
                let bytes = take(data, &mut place, size)?;
                items.push(Unpacked::Number(read_integer(bytes, format.little, false)?));
            }
            PackItem::Float => {
                let bits = read_bits(take(data, &mut place, 4)?, format.little);
                items.push(Unpacked::Number(f64::from(f32::from_bits(bits as u32))));
            }
            PackItem::Double => {
                let bits = read_bits(take(data, &mut place, 8)?, format.little);
                items.push(Unpacked::Number(f64::from_bits(bits as u64)));
            }
            PackItem::Fixed(size) => items.push(Unpacked::Text(take(data, &mut place, size)?)),
            PackItem::Counted(size) => {
                let bytes = take(data, &mut place, size)?;
                let length = read_integer(bytes, format.little, false)?;
                if length > data.len() as f64 {
                    return Err(TOO_SHORT.to_owned());
                }
                items.push(Unpacked::Text(take(data, &mut place, length as usize)?));
            }
            PackItem::Terminated => {
                let rest = data.get(place..).unwrap_or_default();
                let length = memchr::memchr(0, rest).ok_or("unfinished string for format 'z'")?;
                items.push(Unpacked::Text(take(data, &mut place, length)?));
                place += 1;
            }
            PackItem::Padding => {
                take(data, &mut place, 1)?;
            }
            PackItem::Align => {}
        }
    }
    Ok((items, place))
}

/// Why an unpack ended early.
const TOO_SHORT: &str = "data string too short";

fn take<'a>(data: &'a [u8], place: &mut usize, count: usize) -> PackResult<&'a [u8]> {
    let end = place.checked_add(count).ok_or(TOO_SHORT)?;
    let taken = data.get(*place..end).ok_or(TOO_SHORT)?;
    *place = end;
    Ok(taken)
}

fn read_bits(bytes: &[u8], little: bool) -> u128 {
    let add = |number: u128, byte: &u8| number << 8 | u128::from(*byte);
    match little {
        true => bytes.iter().rev().fold(0, add),
        false => bytes.iter().fold(0, add),
    }
}

/// Reads an integer in the range of Lua 5.3, which has 64 bits.
fn read_integer(bytes: &[u8], little: bool, signed: bool) -> PackResult<f64> {
    let bits = read_bits(bytes, little);
    let unused = 128 - 8 * bytes.len() as u32;
    if signed {
        let number = ((bits << unused) as i128) >> unused;
        if i64::try_from(number).is_ok() {
            return Ok(number as f64);
        }
    } else if u64::try_from(bits).is_ok() {
        return Ok(bits as f64);
    }
    let size = bytes.len();
    Err(format!("{size}-byte integer does not fit into Lua Integer"))
}
