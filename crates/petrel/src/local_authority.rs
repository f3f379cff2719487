//! `petrel serve --tls`: a certificate authority of the user's own, and certificates that it signs.
//!
//! The authority is made once and kept in the user's data directory. Only the user can read its key. Each
//! start makes a new certificate for the names under which the server can be reached. This module knows no
//! servers and no configurations: [`crate::serve_dir`] puts the certificate's path into one.

#![expect(
    clippy::disallowed_methods,
    reason = "certificates are made before there is a worker"
)]

use std::fmt::Write as _;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose, SanType, date_time_ymd,
};
use rustix::fs::FlockOperation;
use x509_parser::prelude::{FromDer, Pem, X509Certificate};

/// A user's certificate authority.
pub(crate) struct LocalAuthority {
    directory: PathBuf,
    issuer: Issuer<'static, KeyPair>,
    /// The authority's name, as lists of certificates show it.
    name: String,
    /// Whether it was just made, so that no browser trusts it yet.
    pub(crate) is_new: bool,
    /// A file lock. It keeps a second `petrel serve` that starts at the same time from making another
    /// authority.
    _lock: File,
}

/// The user's data directory, according to the environment.
///
/// # Errors
/// The environment names none.
pub(crate) fn data_directory(environment: impl Fn(&str) -> Option<PathBuf>) -> io::Result<PathBuf> {
    let absolute = |name| environment(name).filter(|path| path.is_absolute());
    let data = absolute("XDG_DATA_HOME")
        .or_else(|| absolute("HOME").map(|home| home.join(".local/share")));
    data.map(|data| data.join("petrel")).ok_or_else(|| {
        io::Error::other(
            "--tls keeps a certificate authority in $XDG_DATA_HOME/petrel or ~/.local/share/petrel, and neither \
             XDG_DATA_HOME nor HOME is set to an absolute path: set one of them",
        )
    })
}

/// Checks that `site`, the directory to serve, does not contain the keys in `directory`.
///
/// # Errors
/// One of the two directories contains the other, or cannot be looked up.
pub(crate) fn keep_apart(directory: &Path, site: &Path) -> io::Result<()> {
    let whole = |path: &Path| fs::canonicalize(path).map_err(|error| about(path, error));
    let (directory, site) = (whole(directory)?, whole(site)?);
    if !directory.starts_with(&site) && !site.starts_with(&directory) {
        return Ok(());
    }
    Err(io::Error::other(format!(
        "{}: --tls keeps the key of its certificate authority in {}, which would be served as well: serve another \
         directory, or name another one for the key in XDG_DATA_HOME",
        site.display(),
        directory.display()
    )))
}

impl LocalAuthority {
    /// Opens the authority in `directory`. Makes a new one if there is none, or if it expires before a
    /// certificate that it would sign now.
    ///
    /// # Errors
    /// The directory cannot be read or written, or its files are damaged.
    pub(crate) fn open(directory: &Path) -> io::Result<LocalAuthority> {
        let lock = DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(directory)
            .and_then(|()| File::open(directory))
            .map_err(|error| unwritable(directory, &error))?;
        rustix::fs::flock(&lock, FlockOperation::LockExclusive)
            .map_err(|errno| about(directory, errno.into()))?;
        let (certificate, key) = (directory.join(CERTIFICATE), directory.join(KEY));
        match (certificate.try_exists()?, key.try_exists()?) {
            (true, true) => {
                let read = LocalAuthority::read(directory, lock)?;
                match read {
                    Ok(authority) => Ok(authority),
                    Err(lock) => LocalAuthority::make(directory, lock),
                }
            }
            // A key without a certificate was left behind by a start that was interrupted.
            (false, _) => LocalAuthority::make(directory, lock),
            (true, false) => Err(damaged(&key, "it is not there, its certificate is")),
        }
    }

    /// Reads the authority. The inner `Err` returns the lock: the authority expires too soon.
    fn read(directory: &Path, lock: File) -> io::Result<Result<LocalAuthority, File>> {
        let (certificate, key) = (directory.join(CERTIFICATE), directory.join(KEY));
        let text = |path: &Path| fs::read_to_string(path).map_err(|error| about(path, error));
        let (certificate_text, key_text) = (text(&certificate)?, text(&key)?);
        let key_pair =
            KeyPair::from_pem(&key_text).map_err(|error| damaged(&key, &error.to_string()))?;
        let unsound = |error: &dyn std::fmt::Display| damaged(&certificate, &error.to_string());
        let (pem, _) = Pem::read(io::Cursor::new(&certificate_text)).map_err(|e| unsound(&e))?;
        let (_, parsed) = X509Certificate::from_der(&pem.contents).map_err(|e| unsound(&e))?;
        if parsed.public_key().raw != rcgen::PublicKeyData::subject_public_key_info(&key_pair) {
            return Err(damaged(
                &key,
                "it is not the key of the certificate beside it",
            ));
        }
        let name = parsed.subject().iter_common_name().next();
        let name = name.and_then(|name| name.as_str().ok());
        let name = name.unwrap_or_default().to_owned();
        let ends = Duration::from_secs(
            parsed
                .validity()
                .not_after
                .timestamp()
                .max(0)
                .unsigned_abs(),
        );
        if ends < now() + CERTIFICATE_LIFETIME {
            return Ok(Err(lock));
        }
        let issuer = Issuer::from_ca_cert_pem(&certificate_text, key_pair);
        Ok(Ok(LocalAuthority {
            directory: directory.to_owned(),
            issuer: issuer.map_err(|error| unsound(&error))?,
            name,
            is_new: false,
            _lock: lock,
        }))
    }

    fn make(directory: &Path, lock: File) -> io::Result<LocalAuthority> {
        // The time distinguishes the authorities of one user in a browser's list.
        let name = format!("Petrel on {} ({})", host_name(), now().as_secs());
        let mut params = CertificateParams::default();
        params.distinguished_name = named(&name);
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        lasting(&mut params, AUTHORITY_LIFETIME);
        let key = KeyPair::generate().map_err(io::Error::other)?;
        let key_text = key.serialize_pem();
        let made = CertifiedIssuer::self_signed(params.clone(), key).map_err(io::Error::other)?;
        // The certificate is written last, and an old one is removed first, so that a new key never stands
        // beside the certificate of an old one. A key alone does not count as an authority.
        let certificate = directory.join(CERTIFICATE);
        match fs::remove_file(&certificate) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(unwritable(&certificate, &error));
            }
            _ => {}
        }
        write(&directory.join(KEY), &key_text, 0o600)?;
        write(&certificate, &made.pem(), 0o644)?;
        let key = KeyPair::from_pem(&key_text).map_err(io::Error::other)?;
        Ok(LocalAuthority {
            directory: directory.to_owned(),
            issuer: Issuer::new(params, key),
            name,
            is_new: true,
            _lock: lock,
        })
    }

    /// The path of the authority's certificate.
    pub(crate) fn certificate(&self) -> PathBuf {
        self.directory.join(CERTIFICATE)
    }

    /// Makes a certificate for a server that listens on `bind`. Returns the path of the file with certificate
    /// and key. Servers on different addresses use different files.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) fn certify(&self, bind: IpAddr) -> io::Result<PathBuf> {
        let mut params = CertificateParams::default();
        params.distinguished_name = named("Petrel");
        params.subject_alt_names = names(bind);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        lasting(&mut params, CERTIFICATE_LIFETIME);
        let key = KeyPair::generate().map_err(io::Error::other)?;
        let certificate = params
            .signed_by(&key, &self.issuer)
            .map_err(io::Error::other)?;
        let path = self.directory.join(format!("server-{bind}.pem"));
        write(&path, &(certificate.pem() + &key.serialize_pem()), 0o600)?;
        Ok(path)
    }

    /// How to make a browser trust the authority, and how to revert that.
    pub(crate) fn instructions(&self, url: &str) -> String {
        let (file, name) = (shell_word(&self.certificate()), &self.name);
        let directory = shell_word(&self.directory);
        let mut text = String::new();
        let _infallible = write!(
            text,
            "Made a certificate authority for this user. Programs trust the server once they trust
{file}:
  curl               curl --cacert {file} {url}
  Debian, Ubuntu     sudo cp {file} {SYSTEM} && sudo update-ca-certificates
  Chromium, Chrome   certutil -d sql:$HOME/.pki/nssdb -A -t C,, -n '{name}' -i {file}
  Firefox            the same with -d sql:PROFILE (about:profiles names it), or Settings, Certificates, Import
To take it back:
  sudo rm {SYSTEM} && sudo update-ca-certificates --fresh
  certutil -d sql:$HOME/.pki/nssdb -D -n '{name}'
  rm -r {directory}
certutil is in Debian's package libnss3-tools. A program that can read {KEY} can pose as any server to those
who trust the authority: keep it to yourself."
        );
        text
    }
}

/// The names and addresses of a server that listens on `bind`.
fn names(bind: IpAddr) -> Vec<SanType> {
    let dns = |name: &str| name.try_into().ok().map(SanType::DnsName);
    let mut addresses = vec![
        IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(Ipv6Addr::LOCALHOST),
    ];
    if bind.is_unspecified() {
        addresses.extend(interface_addresses());
    } else {
        addresses.push(bind);
    }
    addresses.sort_unstable();
    addresses.dedup();
    [dns("localhost"), dns(&host_name())]
        .into_iter()
        .flatten()
        .chain(addresses.into_iter().map(SanType::IpAddress))
        .collect()
}

/// The machine's addresses. Link-local ones are left out, because browsers cannot use them.
fn interface_addresses() -> Vec<IpAddr> {
    let interfaces = nix::ifaddrs::getifaddrs().into_iter().flatten();
    let addresses = interfaces.filter_map(|interface| {
        let address = interface.address?;
        let v4 = address.as_sockaddr_in().map(|it| IpAddr::V4(it.ip()));
        v4.or_else(|| address.as_sockaddr_in6().map(|it| IpAddr::V6(it.ip())))
    });
    let is_usable = |address: &IpAddr| match address {
        IpAddr::V4(_) => true,
        IpAddr::V6(address) => !address.is_unicast_link_local(),
    };
    addresses.filter(is_usable).collect()
}

fn host_name() -> String {
    let name = nix::unistd::gethostname().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

fn named(common_name: &str) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    name.push(DnType::OrganizationName, "Petrel local certificates");
    name.push(DnType::CommonName, common_name);
    name
}

/// Sets the validity. It begins a day ago, because the clocks of clients differ.
fn lasting(params: &mut CertificateParams, lifetime: Duration) {
    let epoch = date_time_ymd(1970, 1, 1);
    params.not_before = epoch + now().saturating_sub(DAY);
    params.not_after = epoch + now() + lifetime;
}

fn now() -> Duration {
    let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since_1970.unwrap_or_default()
}

/// Replaces a file at once, so that readers see either the old or the new content.
fn write(path: &Path, text: &str, mode: u32) -> io::Result<()> {
    let new = path.with_extension("new");
    let written = (|| {
        // A program that was interrupted may have left this file, with another mode.
        match fs::remove_file(&new) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut options = OpenOptions::new();
        let mut file = options.write(true).create_new(true).mode(mode).open(&new)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&new, path)
    })();
    written.map_err(|error| unwritable(path, &error))
}

fn unwritable(path: &Path, error: &io::Error) -> io::Error {
    let message = format!(
        "{}: {error} (--tls keeps a certificate authority there; XDG_DATA_HOME may name another directory)",
        path.display()
    );
    io::Error::new(error.kind(), message)
}

fn damaged(path: &Path, what: &str) -> io::Error {
    let directory = path.parent().unwrap_or(path).display();
    io::Error::new(
        io::ErrorKind::InvalidData,
        format!(
            "{}: {what} (remove {directory} to have a new certificate authority made)",
            path.display()
        ),
    )
}

fn about(path: &Path, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

/// A path quoted as one word for a shell.
fn shell_word(path: &Path) -> String {
    let text = path.display().to_string();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-+@%".contains(c);
    match text.chars().all(is_plain) {
        true => text,
        false => format!("'{}'", text.replace('\'', "'\\''")),
    }
}

const CERTIFICATE: &str = "authority.pem";
const KEY: &str = "authority-key.pem";
const SYSTEM: &str = "/usr/local/share/ca-certificates/petrel-local.crt";

const DAY: Duration = Duration::from_secs(24 * 60 * 60);
const AUTHORITY_LIFETIME: Duration = Duration::from_secs(10 * 365 * 24 * 60 * 60);
/// The longest lifetime that browsers accept is 398 days (Safari).
const CERTIFICATE_LIFETIME: Duration = Duration::from_secs(365 * 24 * 60 * 60);

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use x509_parser::prelude::GeneralName;

    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).expect("there").permissions().mode() & 0o7777
    }

    #[test]
    fn an_authority_is_made_once() {
        let base = tempfile::tempdir().expect("a directory");
        let directory = base.path().join("share/petrel");
        let first = LocalAuthority::open(&directory).expect("made");
        assert!(first.is_new);
        let (certificate, name) = (
            fs::read(first.certificate()).expect("there"),
            first.name.clone(),
        );
        drop(first);
        assert_eq!(mode(&directory), 0o700);
        assert_eq!(mode(&directory.join(KEY)), 0o600);
        let again = LocalAuthority::open(&directory).expect("read");
        assert!(!again.is_new);
        assert_eq!(again.name, name);
        assert_eq!(fs::read(again.certificate()).expect("there"), certificate);
        let server = again
            .certify(IpAddr::V4(Ipv4Addr::LOCALHOST))
            .expect("made");
        assert_eq!(mode(&server), 0o600);
    }

    #[test]
    fn a_certificate_is_signed_by_the_authority_and_has_all_names() {
        let base = tempfile::tempdir().expect("a directory");
        let authority = LocalAuthority::open(base.path()).expect("made");
        let bind = "192.0.2.7".parse().expect("an address");
        let text = fs::read(authority.certify(bind).expect("made")).expect("there");
        let (pem, _) = Pem::read(io::Cursor::new(text)).expect("sound");
        let (_, parsed) = X509Certificate::from_der(&pem.contents).expect("sound");
        let issuer = parsed.issuer().iter_common_name().next().expect("named");
        assert_eq!(issuer.as_str().ok(), Some(authority.name.as_str()));
        let names = parsed
            .subject_alternative_name()
            .expect("sound")
            .expect("there");
        let has = |name: GeneralName<'_>| names.value.general_names.contains(&name);
        assert!(has(GeneralName::DNSName("localhost")));
        assert!(has(GeneralName::DNSName(&host_name())));
        for address in [[127, 0, 0, 1], [192, 0, 2, 7]] {
            assert!(has(GeneralName::IPAddress(&address)), "{address:?}");
        }
        assert!(has(GeneralName::IPAddress(&Ipv6Addr::LOCALHOST.octets())));
        let days =
            parsed.validity().not_after.timestamp() / 86_400 - now().as_secs() as i64 / 86_400;
        assert!((364..=366).contains(&days), "{days}");
    }

    #[test]
    fn an_authority_that_ends_soon_is_made_anew() {
        let base = tempfile::tempdir().expect("a directory");
        let old = write_old(base.path());
        let authority = LocalAuthority::open(base.path()).expect("made");
        assert!(authority.is_new);
        assert_ne!(
            fs::read_to_string(authority.certificate()).expect("there"),
            old
        );
    }

    #[test]
    fn a_start_that_was_cut_short_leaves_no_half_of_an_authority() {
        for has_old in [false, true] {
            let base = tempfile::tempdir().expect("a directory");
            if has_old {
                write_old(base.path());
            }
            // This directory makes the writing of the certificate fail.
            let obstacle = base.path().join(CERTIFICATE).with_extension("new");
            fs::create_dir(&obstacle).expect("made");
            assert!(LocalAuthority::open(base.path()).is_err());
            assert!(base.path().join(KEY).exists());
            fs::remove_dir(&obstacle).expect("removed");
            let authority = LocalAuthority::open(base.path()).expect("made");
            assert!(authority.is_new);
        }
    }

    /// Writes an authority that expires soon. Returns its certificate.
    fn write_old(directory: &Path) -> String {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::default();
        params.distinguished_name = named("old");
        lasting(&mut params, CERTIFICATE_LIFETIME - DAY);
        let old = params.self_signed(&key).expect("a certificate").pem();
        write(&directory.join(CERTIFICATE), &old, 0o644).expect("written");
        write(&directory.join(KEY), &key.serialize_pem(), 0o600).expect("written");
        old
    }

    #[test]
    fn what_is_damaged_is_named_with_what_to_do() {
        let base = tempfile::tempdir().expect("a directory");
        let authority = LocalAuthority::open(base.path()).expect("made");
        let (certificate, key) = (authority.certificate(), base.path().join(KEY));
        drop(authority);
        let error = || {
            let error = LocalAuthority::open(base.path())
                .err()
                .expect("refused")
                .to_string();
            assert!(error.contains("remove "), "{error}");
            error
        };
        let sound = fs::read(&key).expect("there");
        fs::write(&key, KeyPair::generate().expect("a key").serialize_pem()).expect("written");
        assert!(error().contains("not the key of the certificate"));
        fs::write(&key, "").expect("written");
        assert!(error().starts_with(&key.display().to_string()));
        fs::remove_file(&key).expect("removed");
        assert!(error().contains("it is not there"));
        fs::write(&key, sound).expect("written");
        fs::write(
            &certificate,
            "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
        )
        .expect("written");
        assert!(error().starts_with(&certificate.display().to_string()));
    }

    #[test]
    fn the_data_directory_is_the_environment_s() {
        let with = |xdg: Option<&str>, home: Option<&str>| {
            data_directory(|name| if name == "HOME" { home } else { xdg }.map(PathBuf::from))
        };
        let found = |xdg, home| with(xdg, home).expect("found");
        assert_eq!(
            found(Some("/data"), Some("/home/x")),
            Path::new("/data/petrel")
        );
        assert_eq!(
            found(Some("data"), Some("/home/x")),
            Path::new("/home/x/.local/share/petrel")
        );
        assert_eq!(
            found(None, Some("/home/y")),
            Path::new("/home/y/.local/share/petrel")
        );
        let error = with(None, Some("")).expect_err("nowhere").to_string();
        assert!(error.contains("neither XDG_DATA_HOME nor HOME"), "{error}");
    }

    #[test]
    fn the_key_is_not_below_what_is_served() {
        let base = tempfile::tempdir().expect("a directory");
        let (home, data) = (
            base.path().join("home"),
            base.path().join("home/.local/petrel"),
        );
        let (public, inside) = (home.join("public"), data.join("inside"));
        for directory in [&public, &inside] {
            fs::create_dir_all(directory).expect("made");
        }
        let link = base.path().join("link");
        std::os::unix::fs::symlink(&home, &link).expect("made");
        for site in [&home, &data, &inside, &link] {
            let error = keep_apart(&data, site).expect_err("refused").to_string();
            assert!(error.contains("XDG_DATA_HOME"), "{error}");
        }
        keep_apart(&data, &public).expect("apart");
    }

    #[test]
    fn odd_paths_are_quoted_for_the_shell() {
        assert_eq!(shell_word(Path::new("/a/b.pem")), "/a/b.pem");
        assert_eq!(shell_word(Path::new("/it's $HOME")), "'/it'\\''s $HOME'");
    }
}
