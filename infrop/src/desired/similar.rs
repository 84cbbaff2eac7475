//! What somebody may have meant.

/// Below this the similarity is chance (`pool` and `port` are at 0.8, a slip of one letter above).
const ENOUGH: f64 = 0.85;

/// The word that is most like a text, if one is.
pub(super) fn among<'w>(text: &str, words: impl Iterator<Item = &'w str>) -> Option<&'w str> {
    words
        .map(|word| (strsim::jaro_winkler(&text.to_lowercase(), &word.to_lowercase()), word))
        .filter(|(likeness, _)| *likeness > ENOUGH)
        .max_by(|(one, _), (other, _)| one.total_cmp(other))
        .map(|(_, word)| word)
}
