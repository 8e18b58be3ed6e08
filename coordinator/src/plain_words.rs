//! What parsers say of a value that they cannot use, in the words of JSON: they call our
//! types by their names in the code. Does not know what is parsed.

/// Theirs and ours. Longer ones first where one begins another.
const WORDS: [(&str, &str); 18] = [
    ("invalid type: sequence,", "invalid type: array,"),
    ("invalid type: map,", "invalid type: object,"),
    ("expected a sequence", "expected an array"),
    ("expected a map", "expected an object"),
    ("expected string or map", "expected a string"),
    // Where it must be one of several names.
    ("expected value", "expected a string"),
    ("expected f64", "expected a number"),
    ("expected u64", "expected a whole number, 0 or more"),
    ("expected u32", "expected a whole number, 0 or more"),
    ("expected u16", "expected a whole number, 0 or more"),
    ("expected u8", "expected a whole number, 0 or more"),
    ("expected i64", "expected a whole number"),
    ("expected usize", "expected a whole number, 0 or more"),
    ("value signed int ", "value "),
    ("value unsigned int ", "value "),
    ("unknown variant `", "unknown value `"),
    ("unknown variant: ", "unknown value: "),
    (
        "invalid socket address syntax",
        "write IP:PORT, as in 127.0.0.1:7070",
    ),
];

/// The text in plain words.
pub(crate) fn in_plain_words(text: &str) -> String {
    let mut text = WORDS.iter().fold(text.to_owned(), |text, (theirs, ours)| {
        text.replace(theirs, ours)
    });
    for name_of in ["expected struct ", "expected enum "] {
        while let Some(at) = text.find(name_of) {
            let after = at.saturating_add(name_of.len());
            let name = text.get(after..).unwrap_or_default();
            let length = name
                .find(|letter: char| !letter.is_alphanumeric())
                .unwrap_or(name.len());
            let is_object = name_of == "expected struct ";
            let ours = if is_object {
                "expected an object"
            } else {
                "expected a string"
            };
            text.replace_range(at..after.saturating_add(length), ours);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_code_s_names_are_not_told_to_users() {
        for (theirs, ours) in [
            (
                "invalid type: string \"a\", expected struct LaneBody",
                "invalid type: string \"a\", expected an object",
            ),
            (
                "invalid type: found string \"one\", expected u64 for key \"node_id\"",
                "invalid type: found string \"one\", expected a whole number, 0 or more for key \"node_id\"",
            ),
            (
                "invalid type: map, expected enum Manner at line 1",
                "invalid type: object, expected a string at line 1",
            ),
            (
                "unknown field `a`, expected `b`",
                "unknown field `a`, expected `b`",
            ),
        ] {
            assert_eq!(in_plain_words(theirs), ours);
        }
    }
}
