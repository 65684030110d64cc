// ptx/clusters.cuh, emulated: blocks run one after the other, so that none of it can be done.
#pragma once

[[noreturn]] inline void cluster_wait() { emulated::fail("blocks of a cluster are not emulated"); }
[[noreturn]] inline unsigned cluster_address(unsigned, int) { emulated::fail("blocks of a cluster are not emulated"); }
[[noreturn]] inline void cluster_store(unsigned, float) { emulated::fail("blocks of a cluster are not emulated"); }
[[noreturn]] inline void cluster_add(unsigned, int) { emulated::fail("blocks of a cluster are not emulated"); }
