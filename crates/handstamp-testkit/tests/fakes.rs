//! The fakes keep the rules that the real brokers and databases keep.

mod log {
    handstamp_testkit::source_suite!(paused: handstamp_testkit::fakes::LogHarness::new(None));
}

mod queue_with_lease {
    handstamp_testkit::source_suite!(paused: handstamp_testkit::fakes::QueueHarness::new(true, None));
}

mod queue_without_lease {
    handstamp_testkit::source_suite!(paused: handstamp_testkit::fakes::QueueHarness::new(false, None));
}

mod memory_store {
    handstamp_testkit::store_suite!(paused: handstamp_testkit::fakes::MemoryHarness::new(None));
}

mod memory_store_parks {
    handstamp_testkit::parking_suite!(paused: handstamp_testkit::fakes::MemoryHarness::new(None));
}

mod memory_store_keeps_marks {
    handstamp_testkit::version_suite!(paused: handstamp_testkit::fakes::MemoryHarness::new(None));
}

mod memory_store_keeps_starts {
    handstamp_testkit::start_suite!(paused: handstamp_testkit::fakes::MemoryHarness::new_starts(None));
}

mod memory_store_forgets {
    handstamp_testkit::prune_suite!(paused: handstamp_testkit::fakes::MemoryHarness::new(None));
}

mod memory_sink {
    handstamp_testkit::sink_suite!(paused: handstamp_testkit::fakes::SinkInMemory::new(None));
}
