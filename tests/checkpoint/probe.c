/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Open a checkpoint and print either what is in it or the error with all of
 * its fields.
 *	checkpoint_probe DIR [TOKEN_MAP]	exit 0 or 1
 */
#include <inttypes.h>
#include <stdio.h>

#include "checkpoint.h"

static void print_tensor(const struct checkpoint *c, const char *what,
			 const struct checkpoint_tensor *t)
{
	printf("  %s %s %" PRIu64 " +%" PRIu64 "\n", what,
	       c->files[t->file].name, t->offset, t->bytes);
}

static void print_checkpoint(const struct checkpoint *c)
{
	uint32_t i;

	printf("pad: %" PRId32 "\ntoken map: %" PRIu64 "\n", c->pad_id,
	       c->token_map_len);
	for (i = 0; i < c->num_layers; i++) {
		const struct checkpoint_layer *l = &c->layers[i];

		printf("layer %" PRId32 ": %" PRIu64 " rows\n", l->layer_id,
		       l->rows);
		print_tensor(c, "weight", &l->weight);
		if (l->scale.bytes)
			print_tensor(c, "scale", &l->scale);
	}
}

int main(int argc, char **argv)
{
	struct checkpoint_options options = {0};
	struct engram_error err = {0};
	struct checkpoint *c;

	if (argc < 2 || argc > 3) {
		fputs("usage: checkpoint_probe DIR [TOKEN_MAP]\n", stderr);
		return 2;
	}
	options.dir = argv[1];
	options.token_map_file = argc > 2 ? argv[2] : NULL;
	if (checkpoint_open(&options, &c, &err) == ENGRAM_OK) {
		print_checkpoint(c);
		checkpoint_free(c);
		return 0;
	}
	printf("status: %s\npath: %s\nmessage: %s\nfix: %s\n",
	       engram_status_name(err.status), err.path, err.message, err.fix);
	if (err.needed || err.available)
		printf("needed: %" PRIu64 "\navailable: %" PRIu64 "\n",
		       err.needed, err.available);
	return 1;
}
