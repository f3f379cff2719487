//! What the server offers in handshakes: TLS versions, cipher suites, key exchange groups, and whether the
//! server's or the client's order counts.
//!
//! Read from `ssl.cipher-list`, `ssl.openssl.ssl-conf-cmd` and the older directives. A warning with file and
//! line names what rustls does not have. The start is refused when nothing of a value is left, and when a
//! value asks for a protection that rustls cannot give.

use petrel_engine::config::{Config, Diagnostic, Element, Entry, Span};
use petrel_engine::rustls::crypto::aws_lc_rs::{self, ALL_KX_GROUPS, DEFAULT_KX_GROUPS};
use petrel_engine::rustls::crypto::{CryptoProvider, SupportedKxGroup};
use petrel_engine::rustls::version::{TLS12, TLS13};
use petrel_engine::rustls::{CipherSuite, NamedGroup, SupportedProtocolVersion};
use petrel_engine::settings::Values;

use super::ciphers::{self, ChosenCiphers};

/// The offer of one host.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Offer {
    tls12: bool,
    tls13: bool,
    suites: Vec<u16>,
    groups: Vec<u16>,
    /// The server's order of cipher suites counts, not the client's.
    pub(super) by_server: bool,
    /// Clients get tickets to resume their sessions with.
    pub(super) tickets: bool,
}

impl Offer {
    /// The offer that `values` describe.
    ///
    /// # Errors
    /// See [`read`].
    pub(super) fn new(values: &Values<'_>) -> Result<Offer, Diagnostic> {
        read(&|name| values.entry(name)).map(|(offer, _)| offer)
    }

    /// Whether TLS 1.3 is offered.
    pub(super) fn has_tls13(&self) -> bool {
        self.tls13
    }

    /// The versions, in rustls's terms.
    pub(super) fn versions(&self) -> Vec<&'static SupportedProtocolVersion> {
        let versions = [(self.tls13, &TLS13), (self.tls12, &TLS12)];
        versions
            .into_iter()
            .filter(|(has, _)| *has)
            .map(|(_, version)| version)
            .collect()
    }

    /// The cipher suites and groups, in rustls's terms.
    pub(super) fn provider(&self) -> CryptoProvider {
        let suites = self.suites.iter().map(|suite| CipherSuite::from(*suite));
        let groups = self
            .groups
            .iter()
            .filter_map(|group| group_of(NamedGroup::from(*group)));
        CryptoProvider {
            cipher_suites: suites.filter_map(ciphers::implementation).collect(),
            kx_groups: groups.collect(),
            ..aws_lc_rs::default_provider()
        }
    }
}

/// Warnings about values in `config` that have no effect, or another one than they say.
pub(super) fn warnings(config: &Config) -> Vec<Diagnostic> {
    let mut warnings = Vec::new();
    for block in &config.blocks {
        let find = |name: &str| block.entries.iter().find(|entry| entry.name == name);
        // Errors are reported when the settings are built.
        if let Ok((_, told)) = read(&find) {
            warnings.extend(told);
        }
    }
    warnings
}

/// Reads the entries that `find` returns. Returns the offer, and warnings.
///
/// # Errors
/// Nothing usable is left of a value, or a value asks for a protection that rustls does not have.
fn read<'c>(
    find: &dyn Fn(&str) -> Option<&'c Entry>,
) -> Result<(Offer, Vec<Diagnostic>), Diagnostic> {
    let mut reader = OfferReader::default();
    if let Some(entry) = find("ssl.honor-cipher-order")
        && let Some(is_on) = entry.value.as_bool()
    {
        reader.by_server = is_on;
    }
    for (name, key) in [
        ("ssl.cipher-list", "cipherstring"),
        ("ssl.ec-curve", "groups"),
    ] {
        if let Some(entry) = find(name)
            && let Some(text) = entry.value.as_str().filter(|text| !text.is_empty())
        {
            reader.command(key, name, text, entry.value_span)?;
        }
    }
    let commands = find("ssl.openssl.ssl-conf-cmd").and_then(|entry| entry.value.as_array());
    for element in commands.into_iter().flatten() {
        reader.element(element)?;
    }
    reader.finish()
}

/// The offer while its entries are read.
#[derive(Debug)]
struct OfferReader {
    by_server: bool,
    tickets: bool,
    /// Which of SSLv3, TLS 1.0, 1.1, 1.2 and 1.3 `Protocol` leaves.
    protocols: [bool; 5],
    least: usize,
    most: usize,
    /// The place where the versions are set, for the error when none is left.
    versions_span: Option<Span>,
    tls12_suites: Vec<CipherSuite>,
    tls12_span: Option<Span>,
    tls13_suites: Vec<CipherSuite>,
    groups: Vec<NamedGroup>,
    warnings: Vec<Diagnostic>,
}

impl Default for OfferReader {
    fn default() -> OfferReader {
        OfferReader {
            by_server: true,
            tickets: true,
            protocols: [false, false, false, true, true],
            least: 0,
            most: TLS_1_3,
            versions_span: None,
            tls12_suites: ciphers::tls12_default(),
            tls12_span: None,
            tls13_suites: ciphers::tls13_default(),
            groups: DEFAULT_KX_GROUPS.iter().map(|group| group.name()).collect(),
            warnings: Vec::new(),
        }
    }
}

impl OfferReader {
    fn element(&mut self, element: &Element) -> Result<(), Diagnostic> {
        let Some(name) = element.key() else {
            let message = "ssl.openssl.ssl-conf-cmd has a value without a name";
            return Err(Diagnostic::error(message, element.span)
                .with_hint("write it as ( \"MinProtocol\" => \"TLSv1.2\" )"));
        };
        let Some(text) = element.value.as_str() else {
            let message = format!("the value of {name:?} has to be a string");
            return Err(Diagnostic::error(message, element.span));
        };
        self.command(&name.to_ascii_lowercase(), name, text, element.span)
    }

    /// Reads one command of `ssl.openssl.ssl-conf-cmd`: `key` is its name in lower case, `name` as the file
    /// has it at `span`.
    fn command(&mut self, key: &str, name: &str, text: &str, span: Span) -> Result<(), Diagnostic> {
        match key {
            "minprotocol" => {
                self.least = version(name, text, span)?.unwrap_or(0);
                if text.eq_ignore_ascii_case("None") || self.least < TLS_1_2 {
                    self.warn(
                        format!("{name} {text:?}: TLS 1.2 is the least that is spoken"),
                        span,
                    );
                }
                self.versions_span = Some(span);
            }
            "maxprotocol" => {
                self.most = version(name, text, span)?.unwrap_or(TLS_1_3);
                self.versions_span = Some(span);
            }
            "protocol" => {
                self.protocol(name, text, span)?;
                self.versions_span = Some(span);
            }
            "cipherstring" if text.eq_ignore_ascii_case(SYSTEM_PROFILE) => {
                self.warn(
                    format!("{name} {text:?}: the system's policies are not read, the default ciphers are offered"),
                    span,
                );
                self.tls12_suites = ciphers::tls12_default();
            }
            "cipherstring" => {
                let chosen = ciphers::tls12(text);
                self.tell_unknown(name, "ciphers", &chosen, span);
                self.tls12_suites = chosen.suites;
                self.tls12_span = Some(span);
            }
            "ciphersuites" => {
                let chosen = ciphers::tls13(text);
                self.tell_unknown(name, "suites of TLS 1.3", &chosen, span);
                if chosen.suites.is_empty() && !text.is_empty() {
                    return Err(nothing_left(name, span)
                        .with_hint("TLS_AES_128_GCM_SHA256, TLS_AES_256_GCM_SHA384 and TLS_CHACHA20_POLY1305_SHA256 are there"));
                }
                self.tls13_suites = chosen.suites;
            }
            "curves" | "groups" | "ecdhparameters" => self.groups(name, text, span)?,
            "options" => self.options(text, span),
            "verifymode" => {
                let message =
                    format!("{name} is not read: clients would be asked for no certificate");
                return Err(Diagnostic::error(message, span)
                    .with_hint("set ssl.verifyclient.activate and ssl.verifyclient.ca-file"));
            }
            _ => {
                let why = NO_EFFECT.iter().find(|(known, _)| *known == key);
                let why = why.map_or("it is not known", |(_, why)| *why);
                self.warn(format!("{name} has no effect: {why}"), span);
            }
        }
        Ok(())
    }

    fn protocol(&mut self, name: &str, text: &str, span: Span) -> Result<(), Diagnostic> {
        for word in text.split([',', ' ']).filter(|word| !word.is_empty()) {
            let (is_on, word) = match word.split_at_checked(1) {
                Some(("-", word)) => (false, word),
                Some(("+", word)) => (true, word),
                _ => (true, word),
            };
            if word.eq_ignore_ascii_case("ALL") {
                self.protocols = [is_on; 5];
            } else if word.eq_ignore_ascii_case("SSLv2") {
                // OpenSSL removed it long ago as well.
            } else if let Some(version) = version(name, word, span)? {
                self.protocols[version] = is_on;
                if is_on && version < TLS_1_2 {
                    self.warn(
                        format!("{name} {word:?}: TLS 1.2 is the least that is spoken"),
                        span,
                    );
                }
            }
        }
        Ok(())
    }

    fn groups(&mut self, name: &str, text: &str, span: Span) -> Result<(), Diagnostic> {
        if ["auto", "automatic", "default"]
            .iter()
            .any(|auto| text.eq_ignore_ascii_case(auto))
        {
            return Ok(());
        }
        let mut groups = Vec::new();
        let mut unknown = Vec::new();
        let separators = [':', '/', ',', ' '];
        for word in text.split(separators).filter(|word| !word.is_empty()) {
            let (is_optional, word) = match word.trim_start_matches('*') {
                word if word.starts_with('?') => (true, word.trim_start_matches(['?', '*'])),
                word => (false, word),
            };
            match group_named(word) {
                Some(group) if groups.contains(&group) => {}
                Some(group) => groups.push(group),
                None if is_optional => {}
                None => unknown.push(word.to_owned()),
            }
        }
        if groups.is_empty() {
            return Err(nothing_left(name, span).with_hint(
                "X25519MLKEM768, X25519, P-256, P-384 and SecP256r1MLKEM768 are there",
            ));
        }
        if !unknown.is_empty() {
            self.warn(
                format!("{name}: there are no groups {}", unknown.join(", ")),
                span,
            );
        }
        self.groups = groups;
        Ok(())
    }

    fn options(&mut self, text: &str, span: Span) {
        for word in text.split([',', ' ']).filter(|word| !word.is_empty()) {
            let (is_on, option) = match word.split_at_checked(1) {
                Some(("-", option)) => (false, option),
                Some(("+", option)) => (true, option),
                _ => (true, word),
            };
            let option = option.to_ascii_lowercase();
            match OPTIONS.iter().find(|(known, _)| *known == option) {
                Some((_, OptionKind::Order)) => self.by_server = is_on,
                Some((_, OptionKind::Tickets)) => self.tickets = is_on,
                Some((_, OptionKind::Is(fixed))) if *fixed == is_on => {}
                Some((_, OptionKind::NoMatter)) => {}
                Some((_, OptionKind::Is(true))) => {
                    self.warn(
                        format!("Options {word:?} has no effect: it is always on"),
                        span,
                    );
                }
                Some((_, OptionKind::Is(false))) => {
                    self.warn(
                        format!("Options {word:?} has no effect: it is never on"),
                        span,
                    );
                }
                None => self.warn(format!("Options {word:?} is not known"), span),
            }
        }
    }

    fn finish(self) -> Result<(Offer, Vec<Diagnostic>), Diagnostic> {
        let may =
            |version: usize| self.protocols[version] && (self.least..=self.most).contains(&version);
        let (tls12, tls13) = (may(TLS_1_2), may(TLS_1_3) && !self.tls13_suites.is_empty());
        if !tls12 && !tls13 {
            let message = "no version of TLS is left that is spoken: those are TLS 1.2 and 1.3";
            return Err(match self.versions_span {
                Some(span) => Diagnostic::error(message, span),
                None => Diagnostic::error_anywhere(message),
            });
        }
        if tls12
            && self.tls12_suites.is_empty()
            && let Some(span) = self.tls12_span
        {
            return Err(nothing_left("the list of ciphers", span).with_hint(
                "of TLS 1.2, ECDHE with AES-GCM or CHACHA20-POLY1305 is there; leave the list out for all of it, or \
                 ask for TLS 1.3 alone by \"MinProtocol\" => \"TLSv1.3\"",
            ));
        }
        let suites = [(tls13, self.tls13_suites), (tls12, self.tls12_suites)];
        let suites = suites
            .into_iter()
            .filter(|(has, _)| *has)
            .flat_map(|(_, suites)| suites);
        let offer = Offer {
            tls12,
            tls13,
            suites: suites.map(u16::from).collect(),
            groups: self.groups.into_iter().map(u16::from).collect(),
            by_server: self.by_server,
            tickets: self.tickets,
        };
        Ok((offer, self.warnings))
    }

    fn tell_unknown(&mut self, name: &str, what: &str, chosen: &ChosenCiphers, span: Span) {
        if !chosen.unknown.is_empty() && !chosen.suites.is_empty() {
            self.warn(
                format!("{name}: there are no {what} {}", chosen.unknown.join(", ")),
                span,
            );
        }
    }

    fn warn(&mut self, message: String, span: Span) {
        self.warnings.push(Diagnostic::warning(message, span));
    }
}

/// The index of a version in [`VERSIONS`], by OpenSSL's name; `None` for "None".
fn version(name: &str, text: &str, span: Span) -> Result<Option<usize>, Diagnostic> {
    if text.eq_ignore_ascii_case("None") {
        return Ok(None);
    }
    let known = VERSIONS
        .iter()
        .position(|names| names.iter().any(|known| known.eq_ignore_ascii_case(text)));
    known.map(Some).ok_or_else(|| {
        Diagnostic::error(format!("{name}: {text:?} is no version of TLS"), span)
            .with_hint("write TLSv1.2 or TLSv1.3")
    })
}

/// The value that Fedora and Red Hat write in place of a list of ciphers.
const SYSTEM_PROFILE: &str = "PROFILE=SYSTEM";

fn nothing_left(name: &str, span: Span) -> Diagnostic {
    Diagnostic::error(format!("nothing in {name} is to be had"), span)
}

fn group_of(name: NamedGroup) -> Option<&'static dyn SupportedKxGroup> {
    ALL_KX_GROUPS
        .iter()
        .copied()
        .find(|group| group.name() == name)
}

fn group_named(name: &str) -> Option<NamedGroup> {
    let is_named = |names: &[&str]| names.iter().any(|known| known.eq_ignore_ascii_case(name));
    let found = GROUPS.iter().find(|(names, _)| is_named(names))?;
    group_of(found.1).map(|group| group.name())
}

/// What an option of OpenSSL means here.
enum OptionKind {
    /// Sets whether the server's or the client's order of cipher suites counts.
    Order,
    /// Sets whether clients get tickets.
    Tickets,
    /// Fixed at this value. Asking for the other one is an error or a warning.
    Is(bool),
    /// About a version or cipher suite that is never spoken, so that it has no effect.
    NoMatter,
}

const OPTIONS: [(&str, OptionKind); 20] = [
    ("serverpreference", OptionKind::Order),
    ("cipherserverpreference", OptionKind::Order),
    ("sessionticket", OptionKind::Tickets),
    ("compression", OptionKind::Is(false)),
    ("unsafelegacyrenegotiation", OptionKind::Is(false)),
    ("unsafelegacyserverconnect", OptionKind::NoMatter),
    ("clientrenegotiation", OptionKind::Is(false)),
    ("norenegotiation", OptionKind::Is(true)),
    ("noresumptiononrenegotiation", OptionKind::Is(true)),
    ("allownodhekex", OptionKind::Is(false)),
    ("preferno_dhekex", OptionKind::Is(false)),
    ("prioritizechacha", OptionKind::Is(false)),
    ("middleboxcompat", OptionKind::Is(true)),
    ("extendedmastersecret", OptionKind::Is(true)),
    ("antireplay", OptionKind::NoMatter),
    ("emptyfragments", OptionKind::NoMatter),
    ("bugs", OptionKind::NoMatter),
    ("dhsingle", OptionKind::NoMatter),
    ("ecdhsingle", OptionKind::NoMatter),
    ("encryptthenmac", OptionKind::NoMatter),
];

/// Commands of OpenSSL that have no effect here, each with the reason.
const NO_EFFECT: [(&str, &str); 12] = [
    (
        "signaturealgorithms",
        "the server signs with what its key and the client allow",
    ),
    ("clientsignaturealgorithms", "all that are safe are taken"),
    (
        "dhparameters",
        "there is no key exchange with finite-field groups",
    ),
    ("certificate", "the certificate is ssl.pemfile"),
    ("privatekey", "the key is ssl.privkey"),
    (
        "chaincafile",
        "further certificates of the chain are in ssl.pemfile or ssl.ca-file",
    ),
    (
        "chaincapath",
        "further certificates of the chain are in ssl.pemfile or ssl.ca-file",
    ),
    (
        "verifycafile",
        "the authorities of clients are ssl.verifyclient.ca-file",
    ),
    (
        "verifycapath",
        "the authorities of clients are ssl.verifyclient.ca-file",
    ),
    (
        "clientcafile",
        "names of authorities are ssl.verifyclient.ca-dn-file",
    ),
    ("serverinfofile", "there are no further extensions"),
    ("recordpadding", "records are not padded"),
];

/// Names of the versions, oldest first.
const VERSIONS: [&[&str]; 5] = [
    &["SSLv3"],
    &["TLSv1", "TLSv1.0"],
    &["TLSv1.1"],
    &["TLSv1.2"],
    &["TLSv1.3"],
];
const TLS_1_2: usize = 3;
const TLS_1_3: usize = 4;

const GROUPS: [(&[&str], NamedGroup); 7] = [
    (&["X25519MLKEM768"], NamedGroup::X25519MLKEM768),
    (&["SecP256r1MLKEM768"], NamedGroup::secp256r1MLKEM768),
    (&["X25519"], NamedGroup::X25519),
    (&["P-256", "prime256v1", "secp256r1"], NamedGroup::secp256r1),
    (&["P-384", "secp384r1"], NamedGroup::secp384r1),
    (&["P-521", "secp521r1"], NamedGroup::secp521r1),
    (&["MLKEM768"], NamedGroup::MLKEM768),
];
