//! Which options of a client library must never be shown (pure).
//!
//! One list for everybody who prints options: configuration, errors, `Debug`.

/// What the names of options with a secret contain.
const PARTS: [&str; 12] = [
    "password",
    "passphrase",
    "secret",
    "token",
    "credential",
    "jaas",
    ".pem",
    "private",
    "oauthbearer",
    "proxy",
    "keystore.key",
    "ssl.key",
];

/// Whether an option may carry a secret, by its name: rather one too many than one too few.
#[must_use]
pub fn is_secret(option: &str) -> bool {
    let option = option.to_ascii_lowercase();
    PARTS.iter().any(|part| option.contains(part))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_option_that_may_carry_a_credential_is_secret() {
        for option in [
            "sasl.password",
            "SSL.Key.Password",
            "ssl.key.pem",
            "ssl.keystore.key",
            "sasl.oauthbearer.client.secret",
            "sasl.oauthbearer.config",
            "sasl.jaas.config",
            "https.proxy",
            "sasl.oauthbearer.extensions",
            "aws.credentials",
            "access.token",
        ] {
            assert!(is_secret(option), "{option}");
        }
        for option in ["session.timeout.ms", "bootstrap.servers", "ssl.ca.location", "client.id"] {
            assert!(!is_secret(option), "{option}");
        }
    }
}
