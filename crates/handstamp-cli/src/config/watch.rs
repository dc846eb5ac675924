//! `[watch]`: where probes and scrapers are answered.

use super::parse::Section;
use std::net::SocketAddr;

/// What is written for example.
const EXAMPLE: &str = "127.0.0.1:9464";

/// Reads the address.
pub(super) fn read(top: &Section<'_, '_>) -> Option<SocketAddr> {
    let section = top.section("watch")?;
    let text = section.required_text("listen", &format!("\"{EXAMPLE}\""));
    let address = text.filter(super::Text::is_known).and_then(|text| match address(&text.value) {
        Ok(address) => Some(address),
        Err(why) => {
            section.problem(text.line, "listen", why);
            None
        }
    });
    section.finish();
    address
}

/// An address and its port. A name is none: which addresses it stands for, others decide.
///
/// # Errors
/// What to write instead.
pub(crate) fn address(text: &str) -> Result<SocketAddr, String> {
    text.trim().parse().map_err(|_| {
        format!(
            "expected an address and a port such as \"{EXAMPLE}\" (port 0: any that is free); whoever is to be \
             reached from other machines writes \"0.0.0.0:9464\""
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_a_port_and_is_no_name() {
        for good in ["127.0.0.1:9464", "127.0.0.1:0", "0.0.0.0:9464", "[::1]:9464", " 127.0.0.1:1 "] {
            assert!(address(good).is_ok(), "{good}");
        }
        for bad in
            ["", "9464", ":9464", "127.0.0.1", "localhost:9464", "127.0.0.1:65536", "http://127.0.0.1:1"]
        {
            assert!(address(bad).is_err_and(|why| why.contains(EXAMPLE)), "{bad}");
        }
    }
}
