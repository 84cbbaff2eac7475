//! Types that are a text, but not any text.

/// What a checked text type, a struct around a `String`, has beside its own: it is made only of texts that `accepts`
/// takes, and it is that same text for programs, people and serde (with `#[serde(try_from = "String", into =
/// "String")]`).
///
/// The error of a text that is not taken is made of that text by `Error::refuse`, or by what `Error::refuse(…)` gives.
#[macro_export]
macro_rules! checked_text {
    ($type:ident, $error:ident::$refuse:ident $(($($argument:expr),*))?, $accepts:expr) => {
        impl $type {
            /// The text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl ::std::str::FromStr for $type {
            type Err = $error;

            fn from_str(text: &str) -> ::std::result::Result<Self, $error> {
                let accepts: fn(&str) -> bool = $accepts;
                let text = text.to_owned();
                if accepts(&text) { Ok(Self(text)) } else { Err($error::$refuse $(($($argument),*))? (text)) }
            }
        }

        impl TryFrom<String> for $type {
            type Error = $error;

            fn try_from(text: String) -> ::std::result::Result<Self, $error> {
                text.parse()
            }
        }

        impl From<$type> for String {
            fn from(value: $type) -> Self {
                value.0
            }
        }

        impl ::std::fmt::Display for $type {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.pad(&self.0)
            }
        }
    };
}
