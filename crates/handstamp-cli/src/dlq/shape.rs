//! The shape of a reason (pure): what is left of it without what differs from message to message.
//!
//! | in the reason | in the shape |
//! |---|---|
//! | a UUID | `<uuid>` |
//! | `0x…`, or eight hex digits and more, a decimal one among them | `<hex>` |
//! | any other number, with its sign and its decimals | `#` |
//! | what stands in double quotes, or behind `=(` up to `)` | `"…"`, `=(…)` |
//!
//! Names stay, also in quotes: behind `table`, `column`, `constraint` and the like. So does the number behind
//! `effect`: two effects that fail are two causes.

/// Longest shape kept, in bytes; what is longer is cut.
const BYTES_MAX: usize = 400;
/// Fewest digits of a word that is taken for hex.
const HEX_DIGITS_MIN: usize = 8;
/// Words in front of a quoted name that stays.
const NAMED: [&str; 13] = [
    "table",
    "column",
    "constraint",
    "relation",
    "index",
    "function",
    "schema",
    "type",
    "view",
    "trigger",
    "operator",
    "sequence",
    "key",
];
/// Words in front of a number that stays.
const NUMBERED: [&str; 1] = ["effect"];

/// The shape of a reason, in one line.
pub(crate) fn shape(reason: &str) -> String {
    let mut out = String::new();
    let mut rest = reason;
    // The last word, for what stays behind it.
    let mut word = "";
    while let Some(first) = rest.chars().next()
        && out.len() < BYTES_MAX
    {
        let taken = match first {
            '"' => quoted(rest, NAMED.contains(&word), &mut out),
            '=' if rest.starts_with("=(") => within(rest, &mut out),
            _ if is_sign(first, rest, reason) => first.len_utf8(),
            _ if first.is_ascii_alphanumeric() => plain(rest, NUMBERED.contains(&word), &mut out),
            _ => {
                out.push(if first.is_whitespace() { ' ' } else { first });
                first.len_utf8()
            }
        };
        if first.is_ascii_alphanumeric() {
            word = &rest[..taken];
        } else if !first.is_whitespace() {
            word = "";
        }
        rest = &rest[taken..];
    }
    if !rest.is_empty() || out.len() > BYTES_MAX {
        let end = (0..=BYTES_MAX.min(out.len())).rev().find(|at| out.is_char_boundary(*at)).unwrap_or(0);
        out.truncate(end);
        out.push('…');
    }
    out
}

/// A sign of the number behind it: nothing that a word could end with stands in front of it.
fn is_sign(first: char, rest: &str, whole: &str) -> bool {
    let before = whole[..whole.len() - rest.len()].chars().next_back();
    matches!(first, '-' | '+')
        && rest[1..].starts_with(|c: char| c.is_ascii_digit())
        && before
            .is_none_or(|c| !c.is_ascii_alphanumeric() && !matches!(c, '_' | '-' | '+' | ')' | '>' | '#'))
}

/// What stands in quotes; an opening quote alone is a character like others.
fn quoted(rest: &str, named: bool, out: &mut String) -> usize {
    let Some(end) = rest[1..].find('"').map(|at| at + 2) else {
        out.push('"');
        return 1;
    };
    out.push_str(if named { &rest[..end] } else { "\"…\"" });
    end
}

/// The values of a key, as databases write them: `(account_id)=(99)`.
fn within(rest: &str, out: &mut String) -> usize {
    let Some(end) = rest.find(')') else {
        out.push('=');
        return 1;
    };
    out.push_str("=(…)");
    end + 1
}

/// A word, a number, a UUID, or a mixture.
fn plain(rest: &str, numbered: bool, out: &mut String) -> usize {
    if let Some(end) = uuid(rest) {
        out.push_str("<uuid>");
        return end;
    }
    let end = rest.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(rest.len());
    let word = &rest[..end];
    if word.bytes().all(|byte| byte.is_ascii_digit()) && !numbered {
        out.push('#');
        return end + decimals(&rest[end..]);
    }
    if numbered {
        out.push_str(word);
    } else if is_hex(word) {
        out.push_str("<hex>");
    } else {
        digits_out(word, out);
    }
    end
}

/// The decimals behind a whole number.
fn decimals(rest: &str) -> usize {
    let Some(behind) = rest.strip_prefix('.') else { return 0 };
    let digits = behind.bytes().take_while(u8::is_ascii_digit).count();
    if digits == 0 { 0 } else { digits + 1 }
}

/// Hex where no word is: `0x…`, or digits and letters mixed.
fn is_hex(word: &str) -> bool {
    let (prefixed, digits) = match word.strip_prefix("0x") {
        Some(digits) => (true, digits),
        None => (false, word),
    };
    let all_hex = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    all_hex && (prefixed || word.len() >= HEX_DIGITS_MIN && word.bytes().any(|byte| byte.is_ascii_digit()))
}

/// A word with each run of digits as one mark.
fn digits_out(word: &str, out: &mut String) {
    let mut in_digits = false;
    for c in word.chars() {
        if c.is_ascii_digit() {
            if !in_digits {
                out.push('#');
            }
        } else {
            out.push(c);
        }
        in_digits = c.is_ascii_digit();
    }
}

/// The length of a UUID at the beginning: 8-4-4-4-12 hex digits, and no more behind it.
fn uuid(rest: &str) -> Option<usize> {
    const LENGTH: usize = 36;
    let head = rest.as_bytes().get(..LENGTH)?;
    let fits = head.iter().enumerate().all(|(at, byte)| match at {
        8 | 13 | 18 | 23 => *byte == b'-',
        _ => byte.is_ascii_hexdigit(),
    });
    let ends = rest.as_bytes().get(LENGTH).is_none_or(|byte| !byte.is_ascii_alphanumeric());
    (fits && ends).then_some(LENGTH)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_differs_from_message_to_message_goes_and_names_stay() {
        for (reason, expected) in [
            ("effect 1: 0 rows instead of 1", "effect 1: # rows instead of #"),
            ("the handler took longer than 30s", "the handler took longer than #s"),
            ("order 0193f5a0-7c20-729e-899b-fd7f86734721 is gone", "order <uuid> is gone"),
            ("digest 9f86d081884c7d65 of order-17", "digest <hex> of order-#"),
            ("at 0x1f: -12.50, +3 and 4-5", "at <hex>: #, # and #-#"),
            (r#"cannot hold "92233720368547758080""#, r#"cannot hold "…""#),
            (
                "violates foreign key constraint \"ledger_account_fkey\"\nKey (account_id)=(it's 9) is not present in table \"accounts\"",
                r#"violates foreign key constraint "ledger_account_fkey" Key (account_id)=(…) is not present in table "accounts""#,
            ),
            (
                r#"invalid input syntax for type integer: "abc""#,
                r#"invalid input syntax for type integer: "…""#,
            ),
            ("int4 and evt12ab are words", "int# and evt#ab are words"),
            ("a \" alone and =( alone", "a \" alone and =( alone"),
            ("", ""),
        ] {
            assert_eq!(shape(reason), expected, "{reason}");
        }
    }

    #[test]
    fn two_effects_are_two_causes_and_two_constraints_too() {
        let of = |effect: u32, name: &str| shape(&format!("effect {effect}: violates constraint \"{name}\""));
        assert_eq!(of(1, "a"), of(1, "a"));
        assert_ne!(of(1, "a"), of(2, "a"));
        assert_ne!(of(1, "a"), of(1, "b"));
    }

    proptest! {
        #[test]
        fn any_number_id_or_value_gives_the_same_shape(
            number in any::<i64>(), other in any::<i64>(), cents in 0_u32..100, bits in any::<u128>(), value in "[^\"]{0,40}",
        ) {
            let reason = |number: i64, bits: u128, value: &str| format!(
                "balance {number} is below {number}.{cents:02}: id {}, said \"{value}\"",
                uuid::Uuid::from_u128(bits)
            );
            prop_assert_eq!(shape(&reason(number, bits, &value)), shape(&reason(other, !bits, "x")));
        }

        #[test]
        fn a_shape_is_short_in_one_line_and_its_own_shape(reason in "(?s).{0,300}|[-+0-9a-f\"=(). ]{0,900}") {
            let once = shape(&reason);
            prop_assert!(once.len() <= BYTES_MAX + '…'.len_utf8());
            prop_assert!(!once.contains('\n'));
            if reason.len() < BYTES_MAX / 4 && !reason.contains(['=', '"', '(']) {
                prop_assert_eq!(shape(&once), once);
            }
        }
    }
}
