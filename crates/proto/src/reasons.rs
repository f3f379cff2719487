//! Makes enums of reasons from tables: each reason has a name and a sentence for the log.

/// Defines an enum of errors from a table. Each variant displays its sentence. In a table with statuses, each
/// reason also has a status.
macro_rules! reasons {
    (
        $(#[$about:meta])*
        $name:ident {
            $($(#[$doc:meta])* $variant:ident $sentence:literal,)*
        }
    ) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name {
            $($(#[$doc])* #[doc = $sentence] $variant,)*
        }

        impl $name {
            /// Every reason, in table order.
            pub const ALL: &'static [$name] = &[$($name::$variant,)*];

            /// What was wrong, for the log.
            pub const fn sentence(self) -> &'static str {
                match self {
                    $($name::$variant => $sentence,)*
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                formatter.write_str(self.sentence())
            }
        }

        impl std::error::Error for $name {}
    };
    (
        $(#[$about:meta])*
        $name:ident {
            $($variant:ident $status:ident $sentence:literal,)*
        }
    ) => {
        $crate::reasons::reasons! {
            $(#[$about])*
            $name {
                $($variant $sentence,)*
            }
        }

        impl $name {
            /// The status to answer with.
            pub const fn status(self) -> $crate::status::Status {
                match self {
                    $($name::$variant => $crate::status::Status::$status,)*
                }
            }
        }
    };
}

pub(crate) use reasons;
