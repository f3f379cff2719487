//! Parses formats: the next item, and its alignment.

use super::PackResult;

/// One item of a format.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum PackItem {
    Signed(usize),
    Unsigned(usize),
    Float,
    Double,
    /// This many bytes.
    Fixed(usize),
    /// A length of this many bytes, then the text.
    Counted(usize),
    /// A text that ends with a zero byte.
    Terminated,
    /// One byte of padding.
    Padding,
    /// Only alignment.
    Align,
}

pub(super) struct PackFormat<'a> {
    rest: &'a [u8],
    /// Whether the least significant byte comes first.
    pub(super) little: bool,
    align_max: usize,
}

/// The largest integer, in bytes.
pub(super) const INTEGER_BYTES_MAX: usize = 16;

impl<'a> PackFormat<'a> {
    pub(super) fn new(text: &'a [u8]) -> PackFormat<'a> {
        PackFormat {
            rest: text,
            little: cfg!(target_endian = "little"),
            align_max: 1,
        }
    }

    /// The next item, and how many bytes align it when it starts at `total`.
    pub(super) fn next(&mut self, total: usize) -> PackResult<Option<(PackItem, usize)>> {
        loop {
            let [option, rest @ ..] = self.rest else {
                return Ok(None);
            };
            self.rest = rest;
            match option {
                b' ' => {}
                b'<' => self.little = true,
                b'>' => self.little = false,
                b'=' => self.little = cfg!(target_endian = "little"),
                b'!' => self.align_max = self.size(8)?,
                b'X' => {
                    let align = self.aligning_item()?;
                    return Ok(Some((PackItem::Align, self.padding(align, total)?)));
                }
                other => {
                    let (item, align) = self.item(*other)?;
                    return Ok(Some((item, self.padding(align, total)?)));
                }
            }
        }
    }

    /// The item for an option, and its natural alignment.
    fn item(&mut self, option: u8) -> PackResult<(PackItem, usize)> {
        Ok(match option {
            b'b' => (PackItem::Signed(1), 1),
            b'B' => (PackItem::Unsigned(1), 1),
            b'h' => (PackItem::Signed(2), 2),
            b'H' => (PackItem::Unsigned(2), 2),
            b'l' | b'j' => (PackItem::Signed(8), 8),
            b'L' | b'J' | b'T' => (PackItem::Unsigned(8), 8),
            b'i' => {
                let size = self.size(4)?;
                (PackItem::Signed(size), size)
            }
            b'I' => {
                let size = self.size(4)?;
                (PackItem::Unsigned(size), size)
            }
            b'f' => (PackItem::Float, 4),
            b'd' | b'n' => (PackItem::Double, 8),
            b's' => {
                let size = self.size(8)?;
                (PackItem::Counted(size), size)
            }
            b'c' => {
                let size = self.number().ok_or("missing size for format option 'c'")?;
                (PackItem::Fixed(size), 1)
            }
            b'z' => (PackItem::Terminated, 1),
            b'x' => (PackItem::Padding, 1),
            other => return Err(format!("invalid format option '{}'", char::from(other))),
        })
    }

    fn aligning_item(&mut self) -> PackResult<usize> {
        let invalid = || "invalid next option for option 'X'".to_owned();
        let [option, rest @ ..] = self.rest else {
            return Err(invalid());
        };
        self.rest = rest;
        match self.item(*option).map_err(|_| invalid())? {
            (PackItem::Fixed(_) | PackItem::Terminated | PackItem::Padding, _) => Err(invalid()),
            (_, align) => Ok(align),
        }
    }

    fn padding(&self, align: usize, total: usize) -> PackResult<usize> {
        let align = align.min(self.align_max);
        if align <= 1 {
            return Ok(0);
        }
        if !align.is_power_of_two() {
            return Err("format asks for alignment not power of 2".to_owned());
        }
        Ok(align.wrapping_sub(total) & (align - 1))
    }

    /// Reads the size in bytes after an option.
    fn size(&mut self, default: usize) -> PackResult<usize> {
        match self.number() {
            None => Ok(default),
            Some(size) if (1..=INTEGER_BYTES_MAX).contains(&size) => Ok(size),
            Some(size) => Err(format!(
                "integral size ({size}) out of limits [1,{INTEGER_BYTES_MAX}]"
            )),
        }
    }

    fn number(&mut self) -> Option<usize> {
        let digits = self
            .rest
            .iter()
            .take_while(|byte| byte.is_ascii_digit())
            .count();
        let (number, rest) = self.rest.split_at(digits);
        self.rest = rest;
        let number = number.iter().fold(0usize, |number, digit| {
            number
                .saturating_mul(10)
                .saturating_add(usize::from(digit - b'0'))
        });
        (digits > 0).then_some(number)
    }
}

/// The bytes that a format takes, if they are fixed.
pub(super) fn size_of(format: &[u8]) -> PackResult<usize> {
    let mut format = PackFormat::new(format);
    let mut total = 0usize;
    while let Some((item, padding)) = format.next(total)? {
        let size = match item {
            PackItem::Signed(size) | PackItem::Unsigned(size) | PackItem::Fixed(size) => size,
            PackItem::Float => 4,
            PackItem::Double => 8,
            PackItem::Padding => 1,
            PackItem::Align => 0,
            PackItem::Counted(_) | PackItem::Terminated => {
                return Err("variable-length format".to_owned());
            }
        };
        total = total
            .checked_add(padding)
            .and_then(|total| total.checked_add(size))
            .filter(|total| *total <= i32::MAX as usize)
            .ok_or("format result too large")?;
    }
    Ok(total)
}
