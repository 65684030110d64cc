// Launches that overlap: a kernel begins before the one before it on the stream has ended. Where the launch does not allow
// that, and before compute capability 9.0, these do nothing.
#pragma once

// griddepcontrol.launch_dependents: the next kernel may begin as soon as all blocks have come here.
__device__ __forceinline__ void begin_next_launch() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

// griddepcontrol.wait: until the kernel before has ended; what that has written is seen then.
__device__ __forceinline__ void await_previous_launch() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
