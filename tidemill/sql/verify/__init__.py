"""``query.verify()``: is the stream equal to the batch? And ``df.show()``: what is in the stream now?"""
