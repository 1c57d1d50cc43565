// How the blocks of 16 channels of a linear layer are shared out to threads and registers, whatever
// the numbers are.
//
// A thread goes through its blocks once. All rows pass over some blocks that lie side by side, a few
// rows at a time, while the memory brings the next ones: so the time is that of the slower of memory
// and arithmetic, not of both.

#pragma once

#include <cstdint>

#include <omp.h>

namespace {

// Cache lines that are wanted soon: `num` blocks from `begin` on.
struct Soon {
    const char* begin;
    int num;
};

// `Product` has block_begin(block), the address of a block's weights, and
// run<NR, NB>(row, block, soon) for NR rows and NB blocks.
template <typename Product>
struct BlockedProduct {
    const Product& product;
    int num_rows, end;

    // `num` is at most NR.
    template <int NR, int NB>
    void run_rows(int num, int row, int block, Soon soon) const {
        if (num == NR) return product.template run<NR, NB>(row, block, soon);
        if constexpr (NR > 1) run_rows<NR - 1, NB>(num, row, block, soon);
    }

    // In passes of about the same number of rows, which share out what is wanted soon.
    template <int MAX_ROWS, int NB>
    void run_blocks(int block) const {
        const int num_passes = (num_rows + MAX_ROWS - 1) / MAX_ROWS;
        const int num_soon = block + 2 * NB <= end ? NB : 0;
        for (int pass = 0; pass < num_passes; ++pass) {
            const int row = num_rows * pass / num_passes;
            const int num = num_rows * (pass + 1) / num_passes - row;
            const int first = num_soon * pass / num_passes;
            const int last = num_soon * (pass + 1) / num_passes;
            const void* begin = product.block_begin(block + NB + first);
            run_rows<MAX_ROWS, NB>(num, row, block, {static_cast<const char*>(begin), last - first});
        }
    }

    // As many sums as registers can hold: more blocks side by side where there are few rows.
    void run(int block) const {
        if (num_rows <= 4)
            for (; block + 4 <= end; block += 4) run_blocks<4, 4>(block);
        for (; block + 3 <= end; block += 3) run_blocks<8, 3>(block);
        for (; block < end; ++block) run_blocks<8, 1>(block);
    }
};

// To be called by all threads of a parallel region.
template <typename Product>
void run_blocked(const Product& product, int num_rows, int num_blocks) {
    const int64_t thread = omp_get_thread_num(), num_threads = omp_get_num_threads();
    const int end = int(num_blocks * (thread + 1) / num_threads);
    BlockedProduct<Product>{product, num_rows, end}.run(int(num_blocks * thread / num_threads));
}

}  // namespace
