//! Real processes for tests: started, waited for within a limit, ended by their id.
