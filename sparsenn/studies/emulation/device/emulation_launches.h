// ptx/launches.cuh, emulated: launches follow each other.
#pragma once

inline void begin_next_launch() {}
inline void await_previous_launch() {}
