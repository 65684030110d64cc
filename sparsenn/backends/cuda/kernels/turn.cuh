// Where a warp is in a ring of stages that are filled and emptied in turn.
#pragma once

// `parity` changes with every round: it is that of the barriers' phase to wait for.
struct Turn {
    int stage;
    unsigned parity;

    __device__ __forceinline__ void next(int stages) {
        if (++stage == stages) {
            stage = 0;
            parity ^= 1;
        }
    }
};
