//! How a list of cases becomes tests, a list of names and a dispatcher.

/// One test for each case of a suite.
#[doc(hidden)]
#[macro_export]
macro_rules! __suite_tests {
    ([$suite:ident, $harness:expr, $test:meta] $($case:ident)*) => {
        $(
            #[$test]
            async fn $case() {
                let harness = $harness;
                if let Err(failure) = $crate::$suite::run(stringify!($case), &harness).await {
                    panic!("{failure}");
                }
            }
        )*
    };
}

/// The names of a suite's cases.
#[doc(hidden)]
#[macro_export]
macro_rules! __suite_names {
    ([] $($case:ident)*) => { &[$(stringify!($case)),*] };
}

/// Runs the case with a name. A case that is not in the list is dead code, which the build refuses.
#[doc(hidden)]
#[macro_export]
macro_rules! __suite_dispatch {
    ([$name:ident, $harness:ident] $($case:ident)*) => {
        match $name {
            $(stringify!($case) => Box::pin(cases::$case($harness)).await,)*
            other => Err($crate::CaseFailure(format!("there is no case {other}"))),
        }
    };
}
