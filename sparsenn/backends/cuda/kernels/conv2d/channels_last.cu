// channels_last: images from planes of pixels to pixels whose channels are neighbours, or back.
//
// Idea      cuDNN multiplies in TF32 and in half precision where the channels of a pixel are neighbours. A thread takes a pixel
//           and EACH channels: a warp's threads are neighbours in the planes, and a thread's numbers in the pixels.
// Layout    planes (images, channels, pixels), packed (images, pixels, lanes): lanes are channels and zeros after them, up to a
//           multiple of EACH. Of planes to packed where PACKS is 1, else back; FROM and TO are float or half_bits.
// Needs     blocks of THREADS threads that cover the slices of EACH lanes, each for whole warps of pixels: warps go from slice to
//           slice, then to the next pixels. Up to 2^31 - 1 numbers on either side. Numbers beyond half precision become
//           infinite where TO is half_bits.
#include "common.cuh"
#include "fours.cuh"

extern "C" __global__ void __launch_bounds__(THREADS)
    channels_last(const FROM* __restrict__ from, TO* __restrict__ to, int count, int channels, int lanes, int pixels) {
    const int slices = lanes / EACH, spans = (pixels + WARP - 1) / WARP;
    const int warp = blockIdx.x * (THREADS / WARP) + threadIdx.x / WARP, rest = warp / slices, image = rest / spans;
    const int first = (warp - rest * slices) * EACH, pixel = (rest - image * spans) * WARP + threadIdx.x % WARP;
    if (image >= count || pixel >= pixels) return;
    const int plane = (image * channels + first) * pixels + pixel, place = (image * pixels + pixel) * lanes + first;
#pragma unroll
    for (int k = 0; k < EACH; k += 4) {
        if constexpr (PACKS) {
            float four[4];
#pragma unroll
            for (int i = 0; i < 4; ++i)
                four[i] = first + k + i < channels ? number_at(from + plane + (k + i) * pixels) : 0.0f;
            store_four(to + place + k, four);
        } else {
            const float4 read = four_at(from + place + k);
            const float four[4] = {read.x, read.y, read.z, read.w};
#pragma unroll
            for (int i = 0; i < 4; ++i)
                if (first + k + i < channels) store_one(to + plane + (k + i) * pixels, four[i]);
        }
    }
}
