//! Reads `limit.rules` into [`LimitRule`]s, and points at the option that is wrong.

use petrel_engine::config::{Array, Diagnostic, Element};
use petrel_engine::proto::status::Status;
use petrel_engine::settings::Values;

use super::NAME_OF_RULES;
use super::key::{LimitKey, Networks};
use super::rate::Rate;
use super::table::Allowance;

/// One rule. Equal rules are one rule, in whatever blocks of the configuration they stand: they count
/// together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LimitRule {
    pub(super) name: Box<str>,
    pub(super) key: LimitKey,
    pub(super) allowance: Allowance,
    /// Percent of a backend's connections that requests of one key may take.
    pub(super) pool_share: Option<u8>,
    /// How fast all answers of one key are sent together.
    pub(super) bytes_per_second: Option<u64>,
    /// How many keys the table remembers. 0: the rule needs no table.
    pub(super) entries: usize,
    /// The status of a refusal.
    pub(super) status: Status,
}

/// The rules of `limit.rules` in `values`, in the order of the configuration.
///
/// # Errors
/// A rule is wrong. The diagnostic points at it.
pub(super) fn read(values: &Values<'_>) -> Result<Vec<LimitRule>, Diagnostic> {
    let rules = values.array(NAME_OF_RULES);
    rules.into_iter().flat_map(Array::iter).map(rule).collect()
}

fn rule(element: &Element) -> Result<LimitRule, Diagnostic> {
    let (Some(name), Some(array)) = (element.key(), element.value.as_array()) else {
        let message = format!("{NAME_OF_RULES} takes \"name\" => ( \"rate\" => \"10/m\", ... )");
        return Err(Diagnostic::error(message, element.span));
    };
    let options = RuleOptions { element, array };
    options.are_known()?;
    let burst = options.number("burst", 1..=i64::from(u32::MAX))?;
    let rate = match options.text("rate")? {
        Some(text) => {
            let rate = Rate::new(text, burst.map(|burst| burst as u32));
            Some(rate.map_err(|message| options.error("rate", message))?)
        }
        None if burst.is_some() => {
            let message =
                "burst says how many requests of a rate may come at once, and there is no rate";
            return Err(options.error("burst", message));
        }
        None => None,
    };
    let concurrent = options.number("concurrent", 1..=i64::from(u32::MAX))?;
    let allowance = Allowance {
        rate,
        concurrent: concurrent.map(|most| most as u32),
    };
    let pool_share = options.number("pool-share", 1..=100)?;
    let kbytes_per_second = options.number("kbytes-per-second", 1..=i64::from(u32::MAX))?;
    let remembers_keys = allowance != Allowance::default();
    let refuses_nothing = !remembers_keys && pool_share.is_none();
    if refuses_nothing && kbytes_per_second.is_none() {
        let message = format!("the rule {name:?} limits nothing");
        let hint = "give it \"rate\" => \"10/m\", \"concurrent\" => 4, \"pool-share\" => 25 or \"kbytes-per-second\" => 1024";
        return Err(Diagnostic::error(message, element.span).with_hint(hint));
    }
    let entries = options.number("entries", ENTRIES_MIN..=ENTRIES_MAX)?;
    if entries.is_some() && !remembers_keys {
        let message = "entries is how many keys rate or concurrent remember, and there is neither";
        return Err(options.error("entries", message));
    }
    let status = options.number("status", 400..=599)?;
    if status.is_some() && refuses_nothing {
        let message = "status is for refused requests, and kbytes-per-second alone refuses none";
        return Err(options.error("status", message));
    }
    Ok(LimitRule {
        name: name.into(),
        key: key(&options)?,
        allowance,
        pool_share: pool_share.map(|percent| percent as u8),
        bytes_per_second: kbytes_per_second.map(|kbytes| kbytes as u64 * 1024),
        entries: match remembers_keys {
            true => entries.unwrap_or(ENTRIES_DEFAULT) as usize,
            false => 0,
        },
        status: status.map_or(Status::TOO_MANY_REQUESTS, |code| Status(code as u16)),
    })
}

fn key(options: &RuleOptions<'_>) -> Result<LimitKey, Diagnostic> {
    let ipv4_bits = options.number(IPV4_PREFIX, 1..=32)?;
    let ipv6_bits = options.number(IPV6_PREFIX, 1..=128)?;
    let text = options.text("key")?.unwrap_or("address");
    let key = match text.split_once(':') {
        None if text == "address" => {
            let (ipv4_bits, ipv6_bits) = (ipv4_bits.unwrap_or(32), ipv6_bits.unwrap_or(64));
            return Ok(LimitKey::Address(Networks::new(
                ipv4_bits as u8,
                ipv6_bits as u8,
            )));
        }
        None if text == "url" => LimitKey::Url,
        None if text == "all" => LimitKey::All,
        Some(("header", name)) if is_token(name) => {
            LimitKey::Header(name.to_ascii_lowercase().into())
        }
        Some(("cookie", name)) if is_token(name) => LimitKey::Cookie(name.into()),
        Some(("env", name)) if is_token(name) => LimitKey::Environment(name.into()),
        _ => {
            let message = format!(
                "{text:?} is none of address, header:NAME, cookie:NAME, url, env:NAME and all"
            );
            return Err(options.error("key", message));
        }
    };
    for (prefix, is_set) in [(IPV4_PREFIX, ipv4_bits), (IPV6_PREFIX, ipv6_bits)] {
        if is_set.is_some() {
            let message = format!("{prefix} is for \"key\" => \"address\" alone");
            return Err(options.error(prefix, message));
        }
    }
    Ok(key)
}

/// Whether `name` is a token (RFC 9110 section 5.6.2), as names of header fields and cookies are.
fn is_token(name: &str) -> bool {
    let is_token_byte =
        |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !name.is_empty() && name.bytes().all(is_token_byte)
}

/// The options of one rule.
struct RuleOptions<'c> {
    element: &'c Element,
    array: &'c Array,
}

impl<'c> RuleOptions<'c> {
    fn are_known(&self) -> Result<(), Diagnostic> {
        for option in self.array.iter() {
            let key = option.key().unwrap_or_default();
            if !KEYS.contains(&key) {
                let message = format!("{key:?} is none of {}", KEYS.join(", "));
                return Err(Diagnostic::error(message, option.span));
            }
        }
        Ok(())
    }

    fn text(&self, key: &str) -> Result<Option<&'c str>, Diagnostic> {
        let Some(option) = self.array.get(key) else {
            return Ok(None);
        };
        let text = option.value.as_str();
        let message = || format!("{key} takes a string, not {}", option.value.type_name());
        text.map(Some).ok_or_else(|| self.error(key, message()))
    }

    fn number(
        &self,
        key: &str,
        allowed: std::ops::RangeInclusive<i64>,
    ) -> Result<Option<i64>, Diagnostic> {
        let Some(option) = self.array.get(key) else {
            return Ok(None);
        };
        let number = option.value.as_integer();
        match number.filter(|number| allowed.contains(number)) {
            Some(number) => Ok(Some(number)),
            None => {
                let (least, most) = (allowed.start(), allowed.end());
                Err(self.error(key, format!("{key} takes a number from {least} to {most}")))
            }
        }
    }

    /// An error that points at the value of the option `key`.
    fn error(&self, key: &str, message: impl Into<String>) -> Diagnostic {
        let option = self.array.get(key).unwrap_or(self.element);
        Diagnostic::error(message, option.span)
    }
}

const KEYS: [&str; 10] = [
    "key",
    IPV4_PREFIX,
    IPV6_PREFIX,
    "rate",
    "burst",
    "concurrent",
    "pool-share",
    "kbytes-per-second",
    "entries",
    "status",
];

const IPV4_PREFIX: &str = "ipv4-prefix";
const IPV6_PREFIX: &str = "ipv6-prefix";

/// 1.5 MiB when all are in use.
const ENTRIES_DEFAULT: i64 = 65_536;

/// One set of slots in each shard of the table.
const ENTRIES_MIN: i64 = 512;

/// 96 MiB.
const ENTRIES_MAX: i64 = 4_194_304;
