// The numbers of a convolution as conv2d/implicit_float32.cu takes them, and where a block, a pixel and a place of the band are.
#pragma once
#include "products/tensor.cuh"

struct Shape {
    const float* images;
    int count, channels, height, width, filters, out_height, out_width;
    int kernel_height, kernel_width, stride_down, stride_across, pad_down, pad_across, apart_down, apart_across;
    int tile_width, strips, pixels;  // pixels of all images in a strip
    int tiles_down, tiles;
    int band_rows, phase;  // places of a row that are a stride apart
    int tall;  // rows of an image in the band, with the padding
    int entries;  // places of a band, for each of which a unit is read at a time
    int chunks, parts, part_chunks;
    int bands;  // how many there is room for: two, or one if it is never changed

    __device__ __forceinline__ int pitch() const { return phase * stride_across; }
    __device__ __forceinline__ int band_bytes() const { return band_rows * pitch() * LINE; }
    __device__ __forceinline__ int taps() const { return kernel_height * kernel_width; }
    __device__ __forceinline__ int plane() const { return height * width; }
};

// Which part of the depth, filters and pixels a block has.
struct Place {
    int part, tile, filter, strip, pixel;

    __device__ __forceinline__ explicit Place(const Shape& shape) {
        const int block = block_number();
        part = block / shape.tiles;
        tile = block - part * shape.tiles;
        const int rest = tile / shape.tiles_down;
        filter = (tile - rest * shape.tiles_down) * BM;
        strip = rest % shape.strips;
        pixel = rest / shape.strips * BN;
    }
};

// A pixel of the outputs by its number.
struct Pixel {
    int image, y, x;  // x within the strip

    __device__ __forceinline__ Pixel(const Shape& shape, int number) {
        const int row = number / shape.tile_width;
        x = number - row * shape.tile_width;
        image = row / shape.out_height;
        y = row - image * shape.out_height;
    }
};

// A place of the band with the lowest bits of its pixel's number; the sum of a pixel's and a tap's is where the tap's
// first unit of the pixel lies.
__device__ __forceinline__ int with_number(int place, int number) { return place * LINE + (number & 15); }

__device__ __forceinline__ unsigned unit_address(unsigned band, int place, int unit) {
    const int key = (place & 1) | (place >> 1 & 6);
    return band + (place & -LINE) + ((unit ^ key) << 4);
}
