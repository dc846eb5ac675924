//! The shortest texts of a floating-point number (pure).
//!
//! As few digits as come back as the same number. Where the number lies in the middle between two such texts,
//! writers differ: some take the upper one, most (JavaScript, Python, Postgres) the one with an even last
//! digit. A number is lost by neither.

use std::fmt::LowerExp;

/// The shortest texts, with an exponent; equal but for a number in the middle.
pub(crate) fn shortest(number: &impl LowerExp) -> [String; 2] {
    let nearest = format!("{number:e}");
    let mantissa = nearest.split('e').next().unwrap_or_default();
    let digits = mantissa.bytes().filter(u8::is_ascii_digit).count();
    let even = format!("{number:.*e}", digits.saturating_sub(1));
    [nearest, even]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn both_texts_of_a_number_in_the_middle() {
        assert_eq!(
            shortest(&1_700_000_000_123_456.2_f64),
            ["1.7000000001234563e15", "1.7000000001234562e15"]
        );
        assert_eq!(shortest(&0.1_f64), ["1e-1", "1e-1"]);
        assert_eq!(
            shortest(&0.300_000_000_000_000_04_f64),
            ["3.0000000000000004e-1", "3.0000000000000004e-1"]
        );
        assert_eq!(shortest(&16_777_216_f32), ["1.6777216e7", "1.6777216e7"]);
    }

    proptest! {
        #[test]
        fn each_text_comes_back_as_the_number(number in proptest::num::f64::NORMAL, small in proptest::num::f32::NORMAL) {
            for text in shortest(&number) {
                prop_assert_eq!(text.parse::<f64>().unwrap(), number, "{}", text);
            }
            for text in shortest(&small) {
                prop_assert_eq!(text.parse::<f32>().unwrap(), small, "{}", text);
            }
        }
    }
}
