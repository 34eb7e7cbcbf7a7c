/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attach_writable TABLE: attaches to a real sidecar, read-only and for
 * writing, compares the rows, and prints the permissions of the pages that
 * hold them: as attached read-only, writable, and after engram_protect.  Or
 * prints the error and its fix, and exits 1.
 */
#include <stdio.h>
#include <string.h>

#include "engram.h"

static int failed(void)
{
	const struct engram_error *err = engram_last_error();

	printf("%s\n%s\n%s\n", engram_status_name(err->status), err->message,
	       err->fix);
	return 1;
}

/* Of the page at `address`, from /proc/self/maps. */
static void print_permissions(const void *address)
{
	FILE *maps = fopen("/proc/self/maps", "re");
	unsigned long from, to, at = (unsigned long)address;
	char line[512], shown[8];

	while (maps && fgets(line, sizeof(line), maps))
		if (sscanf(line, "%lx-%lx %7s", &from, &to, shown) == 3 &&
		    from <= at && at < to)
			printf("%s\n", shown);
	if (maps)
		fclose(maps);
}

static int same_rows(const struct engram_layer_info *a,
		     const struct engram_layer_info *b)
{
	const int64_t rows = a->rows.row_end - a->rows.row_begin;

	return a->rows.row_begin == b->rows.row_begin &&
	       a->rows.row_end == b->rows.row_end &&
	       !memcmp(a->rows.codes, b->rows.codes,
		       (size_t)(rows * a->rows.code_stride_bytes));
}

/* 1 when an error was printed. */
static int compare(const engram_table *plain, engram_table *writable)
{
	struct engram_layer_info layer, other;

	if (engram_layer_info(plain, 0, &layer) ||
	    engram_layer_info(writable, 0, &other))
		return failed();
	print_permissions(layer.mapping[0].address);
	print_permissions(other.mapping[0].address);
	if (engram_protect(writable))
		return failed();
	print_permissions(other.mapping[0].address);
	printf("%s\n", same_rows(&layer, &other) ? "equal" : "different");
	return 0;
}

int main(int argc, char **argv)
{
	struct engram_attach_params params = {.table = argc > 1 ? argv[1] : ""};
	engram_table *plain = NULL, *writable = NULL;
	engram_client *client = NULL;
	int r;

	r = engram_open(NULL, &client) ||
	    engram_attach(client, &params, &plain);
	params.writable = 1;
	r = r || engram_attach(client, &params, &writable);
	r = r ? failed() : compare(plain, writable);
	engram_detach(writable);
	engram_detach(plain);
	engram_close(client);
	return r;
}
