//! Telling the provider that the host is initialized.

use std::{fs, path::Path, time::Duration};

use common::{
    metadata::{CredentialKind, InitializedMark, Ironic},
    state::Reason,
};
use futures::future::BoxFuture;
use reqwest::{
    Certificate, Client, Response, StatusCode,
    header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue},
    redirect,
};
use secrecy::{ExposeSecret, SecretString};
use serde_json::json;

use crate::{failure::Failure, host::Host};

/// Where infrop finds the mark over SSH.
pub const MARK_FILE: &str = "/var/lib/node-agent/initialized.json";

/// The key in an Ironic node's `extra`.
pub const IRONIC_KEY: &str = "infrop_initialized";

/// A version every Ironic of the last years speaks; `extra` has not changed since.
const IRONIC_API_VERSION: &str = "1.31";

const LIMIT: Duration = Duration::from_secs(30);

/// Far more than any error of Ironic's or of a proxy before it; the agent has a few MiB in all.
const ANSWER_LIMIT: usize = 64 << 10;

/// Someone who wants to know.
pub trait Provider: Sync {
    /// Tells it; again is harmless.
    fn mark_initialized<'a>(&'a self, mark: &'a InitializedMark) -> BoxFuture<'a, Result<(), Failure>>;
}

/// A file on the host itself, for a provider that has no place for marks.
#[derive(Debug)]
pub struct MarkFile<'a> {
    /// The host.
    pub host: &'a Host,
}

impl Provider for MarkFile<'_> {
    fn mark_initialized<'a>(&'a self, mark: &'a InitializedMark) -> BoxFuture<'a, Result<(), Failure>> {
        Box::pin(async move {
            let text = serde_json::to_string_pretty(mark).map_err(|error| failed(&error))?;
            self.host.write(MARK_FILE, &format!("{text}\n"), 0o644)
        })
    }
}

/// The `extra` of the host's Ironic node, with a credential that may do just that.
#[derive(Debug)]
pub struct IronicNode<'a> {
    /// Where and who.
    pub ironic: &'a Ironic,
}

impl Provider for IronicNode<'_> {
    fn mark_initialized<'a>(&'a self, mark: &'a InitializedMark) -> BoxFuture<'a, Result<(), Failure>> {
        Box::pin(async move {
            let Ironic { url, node, credential_file, credential, ca_file } = self.ironic;
            let secret = read_secret(credential_file, *credential)?;
            // A token would follow to wherever an answer points.
            let mut builder = Client::builder().timeout(LIMIT).redirect(redirect::Policy::none());
            if let Some(path) = ca_file {
                let text = fs::read(path).map_err(|error| cannot_read(path, &error))?;
                let certificates = Certificate::from_pem_bundle(&text).unwrap_or_default();
                if certificates.is_empty() {
                    let message = format!("{} holds no certificate", path.display());
                    return Err(Failure::new(Reason::ProviderFailed, message));
                }
                builder = builder.tls_certs_merge(certificates);
            }
            let client = builder.build().map_err(|error| failed(&error))?;
            let body = json!([{ "op": "add", "path": format!("/extra/{IRONIC_KEY}"), "value": mark }]);
            let request = client
                .patch(format!("{}/v1/nodes/{node}", url.trim_end_matches('/')))
                .header("X-OpenStack-Ironic-API-Version", IRONIC_API_VERSION)
                .header(CONTENT_TYPE, "application/json")
                .body(body.to_string());
            let request = match credential {
                CredentialKind::Token => {
                    request.header("X-Auth-Token", token_header(&secret, credential_file)?)
                }
                CredentialKind::Basic => match secret.expose_secret().split_once(':') {
                    Some((user, password)) => request.basic_auth(user, Some(password)),
                    None => return Err(Failure::new(Reason::ProviderFailed, wrong_form(credential_file))),
                },
            };
            let request = request.build().map_err(|error| failed(&error.without_url()))?;
            let headers = request.headers().clone();
            let answer = client.execute(request).await.map_err(|error| {
                let Failure { message, .. } = Failure::of(Reason::ProviderUnavailable, &error.without_url());
                let message = format!("cannot reach Ironic for the mark of {node}: {message}");
                Failure::new(Reason::ProviderUnavailable, message)
            })?;
            let status = answer.status();
            if status.is_success() {
                return Ok(());
            }
            // Ironic locks a node while it works on it, for example until its deployment is wholly done.
            let passing = status.is_server_error()
                || [StatusCode::CONFLICT, StatusCode::TOO_MANY_REQUESTS].contains(&status);
            let reason = if passing { Reason::ProviderUnavailable } else { Reason::ProviderFailed };
            let text = read_limited(answer).await;
            let text = common::annotations::shorten(&without_secret(text, &secret, &headers));
            Err(Failure::new(reason, format!("Ironic answered {status} to the mark of {node}: {text}")))
        })
    }
}

/// What an answer says. One that is too long or breaks off is not quoted at all: where it was cut, a part of our secret
/// could stand that nobody would recognise.
async fn read_limited(mut answer: Response) -> String {
    let mut text = Vec::new();
    loop {
        match answer.chunk().await {
            Ok(Some(piece)) if text.len() + piece.len() <= ANSWER_LIMIT => text.extend_from_slice(&piece),
            Ok(Some(_)) => return format!("more than {} KiB of text", ANSWER_LIMIT >> 10),
            Ok(None) => return String::from_utf8_lossy(&text).into_owned(),
            Err(_) => return String::new(),
        }
    }
}

/// The token as it is shown to Ironic, and to nobody who prints the request.
fn token_header(token: &SecretString, path: &Path) -> Result<HeaderValue, Failure> {
    let mut value = HeaderValue::from_str(token.expose_secret()).map_err(|_| {
        Failure::new(Reason::ProviderFailed, format!("{} does not hold a token", path.display()))
    })?;
    value.set_sensitive(true);
    Ok(value)
}

/// A text from outside without our secret, should it repeat what it was shown. It goes to logs and annotations.
fn without_secret(text: String, secret: &SecretString, shown: &HeaderMap) -> String {
    let secret = secret.expose_secret();
    let password = secret.split_once(':').map(|(_, password)| password);
    let encoded = shown.get(AUTHORIZATION).and_then(|value| value.to_str().ok()?.strip_prefix("Basic "));
    [Some(secret), password, encoded]
        .into_iter()
        .flatten()
        .filter(|part| !part.is_empty())
        .fold(text, |text, part| text.replace(part, "***"))
}

fn failed(error: &dyn std::error::Error) -> Failure {
    Failure::of(Reason::ProviderFailed, error)
}

fn cannot_read(path: &Path, error: &std::io::Error) -> Failure {
    Failure::new(Reason::ProviderFailed, format!("cannot read {}: {error}", path.display()))
}

fn wrong_form(path: &Path) -> String {
    format!("{} does not hold user:password", path.display())
}

fn read_secret(path: &Path, kind: CredentialKind) -> Result<SecretString, Failure> {
    let text = fs::read_to_string(path).map_err(|error| cannot_read(path, &error))?;
    let secret = match kind {
        // A password may begin or end with blanks.
        CredentialKind::Basic => text.trim_end_matches(['\r', '\n']),
        CredentialKind::Token => text.trim(),
    };
    Ok(SecretString::from(secret.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_not_printed_with_its_request() {
        let path = Path::new("/etc/node-agent/token");
        let value = token_header(&SecretString::from("gAAAA"), path).unwrap();
        assert_eq!(value, "gAAAA");
        let mut headers = HeaderMap::new();
        headers.insert("X-Auth-Token", value);
        assert!(!format!("{headers:?}").contains("gAAAA"), "{headers:?}");
        let failure = token_header(&SecretString::from("gAA\nAA"), path).unwrap_err();
        assert_eq!(failure.message, "/etc/node-agent/token does not hold a token");
    }
}
